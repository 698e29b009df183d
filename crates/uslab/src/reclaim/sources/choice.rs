//! The user's choice of pressure sources.

use crate::os::{config, env};

/// The pressure sources to watch, and whether to log the sources found to standard error.
///
/// The default is all sources, without a log. The environment (`USLAB_PRESSURE`,
/// `USLAB_PRESSURE_LOG`) overrides the program's choice.
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

    /// A choice of no source.
    #[must_use]
    pub const fn none() -> Choice {
        Choice::NONE
    }

    /// Watches the source that a service manager names in `MEMORY_PRESSURE_WATCH`. If it names a
    /// source, the kernel's stalls are not watched besides. If it names `/dev/null`, no stalls are
    /// watched.
    #[must_use]
    pub const fn systemd(mut self, watch: bool) -> Choice {
        self.systemd = watch;
        self
    }

    /// Watches the kernel's pressure stall information (PSI) of the process's own cgroup, of a
    /// cgroup above it, or of the system.
    #[must_use]
    pub const fn psi(mut self, watch: bool) -> Choice {
        self.psi = watch;
        self
    }

    /// Watches the bytes left below `memory.high` and `memory.max` of the process's cgroup and of
    /// those above it.
    #[must_use]
    pub const fn cgroup(mut self, watch: bool) -> Choice {
        self.cgroup = watch;
        self
    }

    /// Logs one line for each source to standard error when the sources are opened, and one
    /// whenever a source is lost.
    #[must_use]
    pub const fn log(mut self, write: bool) -> Choice {
        self.log = write;
        self
    }

    /// The choice as a number, for storage in one word.
    pub(in crate::reclaim) const fn bits(self) -> u32 {
        self.systemd as u32 | (self.psi as u32) << 1 | (self.cgroup as u32) << 2 | (self.log as u32) << 3
    }

    /// The inverse of [`Choice::bits`].
    pub(in crate::reclaim) const fn of_bits(bits: u32) -> Choice {
        Choice { systemd: bits & 1 != 0, psi: bits & 2 != 0, cgroup: bits & 4 != 0, log: bits & 8 != 0 }
    }

    /// Returns this choice, overridden by the environment that the process was started with.
    /// `USLAB_PRESSURE` is `auto`, `off`, or a list of `systemd`, `psi` and `cgroup` with commas;
    /// `USLAB_PRESSURE_LOG=1` asks for the log. Neither blocks nor allocates; may be called on any
    /// thread.
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
        // If no word is known, the variable is ignored: a misspelt word switches nothing off.
        if understood { chosen } else { self }
    }
}

/// The text of a value; a value that is too long is ignored.
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
