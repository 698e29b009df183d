//! What the user wants watched.

use crate::os::{config, env};

/// Which pressure sources are watched, and whether what is found is written to standard error.
///
/// The default is all of them, in silence. The environment's word (`USLAB_PRESSURE`,
/// `USLAB_PRESSURE_LOG`) goes over the program's.
///
/// ```
/// use uslab::reclaim::PressureChoice;
/// let choice = PressureChoice::none().cgroup(true).log(true);
/// assert_ne!(choice, PressureChoice::default());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    pub(super) systemd: bool,
    pub(super) psi: bool,
    pub(super) cgroup: bool,
    pub(super) log: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Choice::AUTO
    }
}

impl Choice {
    const AUTO: Choice = Choice { systemd: true, psi: true, cgroup: true, log: false };
    const NONE: Choice = Choice { systemd: false, psi: false, cgroup: false, log: false };

    /// Nothing is watched.
    #[must_use]
    pub const fn none() -> Choice {
        Choice::NONE
    }

    /// What a service manager names in `MEMORY_PRESSURE_WATCH`. Where it names something, the
    /// kernel's stalls are not watched beside it; where it says `/dev/null`, not at all.
    #[must_use]
    pub const fn systemd(mut self, watch: bool) -> Choice {
        self.systemd = watch;
        self
    }

    /// The kernel's pressure stall information (PSI) of the process's own cgroup, of a cgroup above
    /// it, or of the system.
    #[must_use]
    pub const fn psi(mut self, watch: bool) -> Choice {
        self.psi = watch;
        self
    }

    /// What is left below `memory.high` and `memory.max` of the process's cgroup and of those above
    /// it.
    #[must_use]
    pub const fn cgroup(mut self, watch: bool) -> Choice {
        self.cgroup = watch;
        self
    }

    /// One line to standard error for each source when they are looked for, and one whenever a
    /// source is lost.
    #[must_use]
    pub const fn log(mut self, write: bool) -> Choice {
        self.log = write;
        self
    }

    /// As a number, to be kept in one word; and back.
    pub(in crate::reclaim) const fn bits(self) -> u32 {
        self.systemd as u32 | (self.psi as u32) << 1 | (self.cgroup as u32) << 2 | (self.log as u32) << 3
    }

    /// See [`Choice::bits`].
    pub(in crate::reclaim) const fn of_bits(bits: u32) -> Choice {
        Choice { systemd: bits & 1 != 0, psi: bits & 2 != 0, cgroup: bits & 4 != 0, log: bits & 8 != 0 }
    }

    /// This choice, as far as the environment says nothing else: `USLAB_PRESSURE` is `auto`, `off`,
    /// or a list of `systemd`, `psi` and `cgroup` with commas; `USLAB_PRESSURE_LOG=1` asks for the
    /// log. The environment is the one that the process was started with. Neither blocks nor
    /// allocates; may be called on any thread.
    #[must_use]
    pub fn under_environment(self) -> Choice {
        let [which, log] = env::lookup_at_start([config::PRESSURE, config::PRESSURE_LOG]);
        self.under(text(&which), text(&log))
    }

    fn under(mut self, which: Option<&[u8]>, log: Option<&[u8]>) -> Choice {
        if let Some(log) = log {
            self.log = log.trim_ascii() == b"1";
        }
        let Some(which) = which else { return self };
        let mut chosen = Choice { log: self.log, ..Choice::NONE };
        let mut understood = false;
        for word in which.split(|&byte| byte == b',') {
            match word.trim_ascii() {
                b"" => continue,
                b"auto" => chosen = Choice { log: self.log, ..Choice::AUTO },
                b"off" => {}
                b"systemd" => chosen.systemd = true,
                b"psi" => chosen.psi = true,
                b"cgroup" => chosen.cgroup = true,
                unknown => {
                    if self.log {
                        let unknown = unknown.escape_ascii();
                        crate::os::report::print(format_args!(
                            "pressure: USLAB_PRESSURE: `{unknown}` is none of auto, off, systemd, psi, cgroup"
                        ));
                    }
                    continue;
                }
            }
            understood = true;
        }
        // A slip of the pen switches nothing off.
        if understood { chosen } else { self }
    }
}

/// Its text; what is too long is as good as none.
fn text(value: &Option<Result<env::Value, env::TooLong>>) -> Option<&[u8]> {
    Some(value.as_ref()?.as_ref().ok()?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(which: &str) -> Choice {
        Choice::default().under(Some(which.as_bytes()), None)
    }

    #[test]
    fn words_choose() {
        assert_eq!(told("auto"), Choice::default());
        assert_eq!(told("off"), Choice::none());
        assert_eq!(told("psi"), Choice::none().psi(true));
        assert_eq!(told(" systemd, cgroup"), Choice::none().systemd(true).cgroup(true));
        assert_eq!(told("psi,nonsense"), Choice::none().psi(true));
    }

    #[test]
    fn nonsense_changes_nothing() {
        for text in ["", ",", "of", "on,yes", "\u{e9}"] {
            assert_eq!(told(text), Choice::default());
        }
        assert_eq!(Choice::none().under(Some(b"1"), None), Choice::none());
    }

    #[test]
    fn the_environment_goes_over_the_program() {
        assert_eq!(Choice::none().under(Some(b"auto"), None), Choice::default());
        assert_eq!(Choice::default().under(Some(b"off"), Some(b"1")), Choice::none().log(true));
        assert_eq!(Choice::default().log(true).under(None, Some(b"0")), Choice::default());
    }
}
