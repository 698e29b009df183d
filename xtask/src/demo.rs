//! `cargo xtask demo`: from a fresh checkout to a real program on the allocator, in one command.
//!
//! The program is the user's own or, if none is named, perl, which every Debian has. It builds,
//! sorts and drops a few hundred thousand small strings and hashes.

use crate::dist;
use crate::workspace::{self, Workspace};
use anyhow::{Result, bail};
use std::process::Command;

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// The program to run and its arguments, instead of the one built in.
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Counts the words of a generated text, keeps a record for each, sorts them, and prints the most
/// frequent.
const SCRIPT: &str = r#"
    my ($seed, %words) = (42);
    sub random { $seed = ($seed * 1103515245 + 12345) % 2147483648; return $seed >> 8 }
    for my $line (1 .. 300_000) {
        my $word = join '', map { chr(97 + random() % 26) } 1 .. 2 + random() % 3;
        my $record = $words{$word} //= { count => 0, lines => [] };
        $record->{count}++;
        push @{ $record->{lines} }, $line;
    }
    my @sorted = sort { $words{$b}{count} <=> $words{$a}{count} || $a cmp $b } keys %words;
    print scalar(@sorted), " different words; most frequent: ";
    print join(', ', map { "$_ ($words{$_}{count})" } @sorted[0 .. 4]), "\n";
"#;

/// Builds the command and the library, and runs the program.
pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    dist::build_release(workspace, &["uslab-cli", "uslab-preload"])?;
    let mut command = Command::new(workspace.release_dir().join("uslab"));
    command.args(["run", "--stats", "--"]);
    if args.program.is_empty() {
        if Command::new("perl").arg("-e1").status().is_err() {
            bail!("there is no perl here; name a program: cargo xtask demo -- PROGRAM ARGS");
        }
        println!("$ uslab run --stats -- perl -e '<count words of a generated text>'");
        command.args(["perl", "-e", SCRIPT]);
    } else {
        println!("$ uslab run --stats -- {}", args.program.join(" "));
        command.args(&args.program);
    }
    workspace::check(&mut command)
}
