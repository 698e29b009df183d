//! Shell pipelines of small programs: many short processes, some with threads (sort, xz), some with
//! forks (bash, perl).

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(coreutils => pipelines, archives => packs_and_unpacks, perl => hashes_and_forks);

/// Runs a script of bash in `mode` and without the allocator, each in a fresh directory, and
/// compares the outputs.
fn same_output(mode: Mode, name: &str, script: &str) {
    let run = |mode: Mode| {
        let scratch = Scratch::new(name);
        let bash = Program::new(tool("bash", "bash"))
            .args(["-c", &format!("set -euo pipefail; mkdir work; cd work\n{script}")]);
        let outcome = bash.limit_s(240).run_clean(&scratch, mode);
        outcome.expect(outcome.stderr().is_empty(), "something was written to standard error");
        outcome.stdout()
    };
    let (plain, ours) = (run(Mode::Plain), run(mode));
    assert!(!plain.is_empty(), "the script prints nothing to compare");
    assert_eq!(plain, ours, "{mode:?}: other output than without the allocator");
}

fn pipelines(mode: Mode) {
    same_output(
        mode,
        "coreutils",
        r#"
        export LC_ALL=C
        seq 1 300000 | awk '{ print ($1 * 7919) % 1000003, "row", $1 }' >rows
        sort -n --parallel=4 -S 20M rows | md5sum
        sort -k3,3 -r --parallel=2 -S 1M rows | uniq -c | tail -n 3
        cut -d' ' -f1 rows | tr 0-9 a-j | sort -u | wc -l
        join <(sort rows | head -n 20000) <(sort rows | tail -n +10000) | wc
        split -l 10000 rows part. && cat part.* | cmp - rows && ls part.* | wc -l
        tac rows | rev | fold -w 17 | paste - - - | sha256sum
        declare -A seen; for i in {1..20000}; do seen[$((i * 31 % 5003))]+="$i,"; done
        printf '%s %s\n' "${#seen[@]}" "${#seen[17]}"
        for i in {1..300}; do echo "$(echo $i | sed 's/^/n/')"; done | md5sum
        find . -type f | xargs -n 1 -P 4 wc -c | awk '{ s += $1 } END { print s }'
        "#,
    );
}

fn packs_and_unpacks(mode: Mode) {
    for program in ["tar", "gzip", "bzip2", "xz"] {
        let package = if program == "xz" { "xz-utils" } else { program };
        tool(program, package);
    }
    same_output(
        mode,
        "archives",
        r#"
        mkdir tree && cd tree
        for i in {1..200}; do seq $i 17 $((i * 200)) >"file $i"; done
        cd .. && (cd tree && sha256sum *) >sums
        for how in gzip bzip2 'xz -T2 --block-size=300KiB' 'xz -9e'; do
            tar -cf "tree.tar.packed" -I "$how" tree
            mkdir out && tar -xf tree.tar.packed -I "${how%% *}" -C out
            (cd out/tree && sha256sum -c --quiet ../../sums) && diff -r tree out/tree && echo "$how is right"
            rm -r out
        done
        "#,
    );
}

fn hashes_and_forks(mode: Mode) {
    let script = r#"
        use strict;
        my (%lists, @kids);
        push @{ $lists{ $_ * 7919 % 4999 } }, { n => $_, text => "x" x ($_ % 300) } for 1 .. 100000;
        my $bytes = 0;
        for my $key (sort { $a <=> $b } keys %lists) { $bytes += $_->{n} * length $_->{text} for @{ $lists{$key} } }
        print scalar(keys %lists), " $bytes\n";
        my $text = join " ", map { "word$_-" . $_ * 3 } 1 .. 20000;
        my $found = () = $text =~ /(\w+?)(\d+)-(\d*5)\b/g;
        (my $changed = $text) =~ s/(\d+)-(\d+)/$2 . "<" x ($1 % 7)/ge;
        print "$found ", length $changed, "\n";
        $| = 1;
        for my $n (1 .. 20) {
            pipe my $from, my $to or die;
            my $pid = fork // die;
            if (!$pid) { my @mine = map { $_ x $n } 1 .. 5000; print $to length join ",", @mine; close $to; exit $n }
            close $to;
            push @kids, [ $pid, $from ];
        }
        for (@kids) { my ($pid, $from) = @$_; my $got = <$from>; waitpid $pid, 0; print $? >> 8, " $got\n" }
    "#;
    let scratch = Scratch::new("perl");
    let file = scratch.write("script.pl", script);
    let perl = Program::new(tool("perl", "perl")).arg(file).env("PERL_HASH_SEED", "0");
    let (plain, ours) = (perl.run_clean(&scratch, Mode::Plain), perl.run_clean(&scratch, mode));
    ours.expect(ours.stderr().is_empty(), "perl wrote to standard error");
    assert_eq!(plain.stdout(), ours.stdout(), "{mode:?}: other output than without the allocator");
}
