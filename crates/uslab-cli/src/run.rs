//! `uslab run`: a program on the allocator.
//!
//! ```text
//!   library → directory → program → environment ─┬─ nothing to tell at the end: exec, and this program is gone
//!                                                └─ --stats: child, its end, its snapshot, its table, its status
//! ```

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::args::{Run, Switch};
use crate::failure::{self, Failure, NOT_EXECUTABLE, NOT_FOUND, Outcome, RUN_FAILED, complain};
use crate::find::{Copies, copies_in};
use crate::layout::MAX_COPIES;
use crate::settings::VALUE_BYTES;
use crate::snapshot::{Snapshot, Trouble};
use crate::{json, output, preload, process, program, snapdir, supervise, text};

/// The name of a program's heap profile, before its process id.
const PROFILE_FILE: &str = "uslab-profile";

/// Runs the program; returns its exit status, or does not return because it has become the program.
pub fn run(options: &Run) -> Outcome {
    let [name, arguments @ ..] = options.program.as_slice() else {
        return Err(Failure::new(NOT_FOUND, "no program is named"));
    };
    if let Some(path) = &options.stats_json {
        output::check(path).map_err(|error| Failure::new(RUN_FAILED, not_written(path, &error)))?;
    }
    let library = preload::find()?;
    let directory = snapdir::prepare()?;
    check_length(&directory, 0)?;
    snapdir::sweep(&directory);
    let file = program::find(name, std::env::var_os("PATH"))?;
    if let Some(reason) = program::cannot_preload(&file, &library) {
        complain(&format!("warning: {reason}"));
    }

    let mut command = Command::new(&file);
    command.arg0(name).args(arguments).env(snapdir::VARIABLE, &directory);
    command.env("LD_PRELOAD", preload::with_library(&library, std::env::var_os("LD_PRELOAD").as_deref()));
    match options.rseq {
        Some(Switch::On) => drop(command.env("USLAB_RSEQ", "1")),
        Some(Switch::Off) => drop(command.env("USLAB_RSEQ", "0")),
        None => {}
    }
    if let Some(guard) = &options.guard {
        command.env("USLAB_GUARD", guard);
    }
    if let Some(letters) = &options.debug {
        command.env("USLAB_DEBUG", letters);
    }
    if let Some(effect) = &options.leaks {
        command.env("USLAB_LEAKS", effect);
    }
    if let Some(period) = options.profile {
        // The program may change its directory before it writes.
        let here = std::env::current_dir().map_err(|error| {
            Failure::new(RUN_FAILED, format_args!("the present directory is not known: {error}"))
        })?;
        let file = here.join(PROFILE_FILE);
        check_length(&file, ".4194304".len())?;
        complain(&format!("the heap profile goes to {}.PID", file.display()));
        command.env("USLAB_PROFILE", period.to_string()).env("USLAB_PROFILE_FILE", file);
    }
    if let Some(file) = &options.leak_suppressions {
        // The program may change its directory before it reads the file.
        let file = file.canonicalize().map_err(|error| {
            Failure::new(RUN_FAILED, format_args!("cannot read {}: {error}", file.display()))
        })?;
        check_length(&file, 0)?;
        command.env("USLAB_LEAK_SUPPRESSIONS", file);
    }
    if let Some(limit) = &options.limit {
        command.env("USLAB_LIMIT", limit);
    }
    if let Some(settings) = &options.conf {
        command.env("USLAB_CONF", settings);
    }
    supervise::keep_ignored_pipes(&mut command);
    if options.stats || options.stats_json.is_some() {
        run_and_report(&mut command, name, &directory, options)
    } else {
        let error = command.exec();
        Err(not_started(name, &error))
    }
}

/// Refuses a path that the library would ignore, with `more` bytes behind it, for its length.
fn check_length(path: &Path, more: usize) -> Result<(), Failure> {
    let most = VALUE_BYTES - 1 - more;
    if path.as_os_str().len() > most {
        let told =
            format_args!("{} is longer than {most} bytes, which the library does not take", path.display());
        return Err(Failure::new(RUN_FAILED, told));
    }
    Ok(())
}

fn run_and_report(command: &mut Command, name: &OsStr, directory: &Path, options: &Run) -> Outcome {
    command.env(snapdir::READER_VARIABLE, std::process::id().to_string());
    let mut last = None;
    let status = supervise::run(command, |pid| last = Some(take_snapshot(directory, pid)))
        .map_err(|error| not_started(name, &error))?;
    let code = exit_code(status);
    match last {
        Some(Ok(snapshot)) => report(&snapshot, name, status, options, code),
        Some(Err((file, trouble))) => {
            complain(&no_statistics(name, &file, &trouble));
            Ok(code)
        }
        None => Ok(code),
    }
}

/// Reads and removes the files of a process that has just ended and whose pid is still its own.
/// Returns the figures of the library's copy that holds the most memory.
fn take_snapshot(directory: &Path, pid: i32) -> Result<Snapshot, (PathBuf, Trouble)> {
    let Copies { found, unread } = copies_in(directory, pid, false);
    let files = (1..=MAX_COPIES).map(|copy| directory.join(snapdir::file_name(pid, copy)));
    files.for_each(|file| drop(fs::remove_file(file)));
    let found = found.into_iter().map(|found| found.snapshot);
    let largest = found.max_by_key(|snapshot| (snapshot.used_bytes, Reverse(snapshot.copy)));
    let missing = || (directory.join(pid.to_string()), Trouble::Missing);
    largest
        .ok_or_else(|| unread.into_iter().next().map_or_else(missing, |(_, file, trouble)| (file, trouble)))
}

fn report(snapshot: &Snapshot, name: &OsStr, status: ExitStatus, options: &Run, code: u8) -> Outcome {
    let command = process::printable(&Path::new(name).file_name().unwrap_or(name).to_string_lossy());
    if options.stats {
        let mut table = text::table::text(snapshot, &command);
        if !snapshot.finished {
            let end = match status.signal() {
                Some(signal) => format!("ended by signal {signal}"),
                None => "ended without running exit handlers".to_owned(),
            };
            table += &format!("({end}: figures are those of its last slow paths)\n");
        }
        failure::note(&table);
    }
    if let Some(path) = &options.stats_json
        && let Err(error) = output::write(path, json::process(snapshot, &command).as_bytes())
    {
        complain(&not_written(path, &error));
        // The program's own failure says more than ours.
        return Ok(if code == 0 { RUN_FAILED } else { code });
    }
    Ok(code)
}

fn not_written(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

fn no_statistics(name: &OsStr, file: &Path, trouble: &Trouble) -> String {
    let name = name.display();
    match trouble {
        Trouble::Missing => format!(
            "no statistics: {name} left no snapshot {} (it is static, changed user, dropped LD_PRELOAD, or ended early)",
            file.display()
        ),
        _ => format!("no statistics: {}: {trouble}", file.display()),
    }
}

fn not_started(name: &OsStr, error: &io::Error) -> Failure {
    let name = name.display();
    match error.kind() {
        // The file was there when we looked, so what is missing is what it needs.
        io::ErrorKind::NotFound => {
            Failure::new(NOT_FOUND, format_args!("cannot execute {name}: its interpreter was not found"))
        }
        _ => Failure::new(NOT_EXECUTABLE, format_args!("cannot execute {name}: {error}")),
    }
}

/// The status that a shell would show: 128 and the signal's number when one ended the program.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_the_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(11 | 0x80)), 139, "a core dump changes nothing");
    }
}
