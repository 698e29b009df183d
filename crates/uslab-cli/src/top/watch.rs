//! Samples one process again and again, and notices when it ends or becomes another program.

use std::time::Instant;

use super::app::App;
use crate::accounts::Parts;
use crate::failure::Failure;
use crate::find::{find, find_copy};
use crate::snapshot::Snapshot;
use crate::{process, residence};

/// Times that a torn snapshot is read again at once.
const MAX_RETRIES: usize = 3;

/// A process that is watched.
pub struct Watch {
    pid: i32,
    /// Which of the library's copies is shown: that with the most memory may change.
    copy: u32,
    /// When the process published what is shown: exec and a new process with the id change it.
    start_ns: u64,
    since: Instant,
    /// Seconds that a second counts for.
    scale: f64,
}

impl Watch {
    /// Finds the process and takes the first sample.
    pub fn start(pid: i32, copy: Option<u32>, interval_s: f64, scale: f64) -> Result<(Watch, App), Failure> {
        let snapshot = find_copy(pid, copy)?;
        let command = shown_command(&snapshot);
        let (start_ns, copy) = (snapshot.start_ns, snapshot.copy);
        let mut watch = Watch { pid, copy, start_ns, since: Instant::now(), scale };
        let mut app = App::new(command, snapshot, interval_s);
        watch.sample(&mut app);
        Ok((watch, app))
    }

    /// Takes a sample. Of a process that is gone, the last figures stay, and the event says so.
    pub fn sample(&mut self, app: &mut App) {
        let pid = self.pid;
        if !process::runs(pid) {
            app.event = Some(format!("process {pid} has ended: these are its last figures"));
            return;
        }
        // After an exec there may be fewer copies.
        let snapshot = match find_copy(pid, Some(self.copy)).or_else(|_| find(pid)) {
            Ok(snapshot) => snapshot,
            Err(failure) => {
                app.event = Some(format!("{}: these are the last figures", failure.message));
                return;
            }
        };
        let mut snapshot = snapshot;
        for _ in 0..MAX_RETRIES {
            if !snapshot.caches.iter().any(crate::snapshot::Cache::is_torn) {
                break;
            }
            if let Ok(again) = find_copy(pid, Some(snapshot.copy)) {
                snapshot = again;
            }
        }
        let Some(residence) = residence::read(&snapshot) else {
            app.event = Some(format!("process {pid} has ended: these are its last figures"));
            return;
        };
        if residence.is_arena_gone {
            let command = process::command_name(pid).unwrap_or_else(|| "?".to_owned());
            app.event = Some(format!(
                "process {pid} now runs {command}, which publishes nothing: these are the last figures"
            ));
            return;
        }
        let is_new = snapshot.start_ns != self.start_ns;
        if is_new {
            (self.start_ns, self.since) = (snapshot.start_ns, Instant::now());
            self.copy = snapshot.copy;
            app.history = super::history::History::default();
            app.command = shown_command(&snapshot);
        }
        app.forked = process::fork_children(pid);
        let parts = Parts::of(&snapshot, residence);
        app.update(snapshot, parts, self.since.elapsed().as_secs_f64() * self.scale);
        if is_new {
            app.event = Some(format!("process {pid} became another program: its figures begin anew"));
        }
    }
}

/// The name of the process; with several copies of the library in it, the number of this one too.
fn shown_command(snapshot: &Snapshot) -> String {
    let command = i32::try_from(snapshot.pid).ok().and_then(process::command_name);
    let command = command.unwrap_or_else(|| "?".to_owned());
    match snapshot.copies {
        1 => command,
        copies => format!("{command}, copy {} of {copies}", snapshot.copy),
    }
}
