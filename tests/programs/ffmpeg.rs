//! ffmpeg generates a picture and a tone, encodes them by several codecs with a fixed number of
//! threads, decodes and scales them. Every file and every frame must equal that of a plain run.

use uslab_tests::harness::{Mode, Program, Scratch, tool};

both_modes!(codecs => encodes_the_same);

/// Name of the file, and the encoders with their settings. The settings stop encoders from using
/// the clock and from looking ahead in threads: otherwise the files would differ under load, even
/// without the allocator.
const FILES: [(&str, &str); 4] = [
    ("h264.mp4", "-c:v libx264 -preset veryfast -threads 4 -x264-params sync-lookahead=0 -c:a aac -b:a 96k"),
    ("mpeg4.avi", "-c:v mpeg4 -threads 4 -b:v 800k -c:a libmp3lame"),
    ("vp8.webm", "-c:v libvpx -threads 4 -deadline good -cpu-used 5 -b:v 600k -c:a libopus"),
    ("ffv1.mkv", "-c:v ffv1 -slices 4 -threads 4 -c:a flac"),
];

fn encodes_the_same(mode: Mode) {
    let (plain, ours) = (files(Mode::Plain), files(mode));
    for ((name, wanted), (_, got)) in plain.iter().zip(&ours) {
        assert!(!wanted.is_empty(), "{name} is empty without the allocator");
        assert!(wanted == got, "{mode:?}: {name} differs from the one made without the allocator");
    }
}

/// The encoded files, and the hashes of each decoded frame.
fn files(mode: Mode) -> Vec<(String, Vec<u8>)> {
    let scratch = Scratch::new("ffmpeg");
    let ffmpeg = |line: &str| {
        let quiet = "-nostdin -hide_banner -loglevel error -y";
        let program = Program::new(tool("ffmpeg", "ffmpeg")).args(quiet.split_whitespace());
        let outcome = program.args(line.split_whitespace()).run_clean(&scratch, mode);
        outcome.expect(outcome.stderr().is_empty(), "ffmpeg wrote to standard error");
    };
    let source = "-f lavfi -i testsrc2=size=320x240:rate=25:duration=2 \
                  -f lavfi -i sine=frequency=440:sample_rate=48000:duration=2";
    let exact = "-bitexact -flags +bitexact -fflags +bitexact -map_metadata -1 -pix_fmt yuv420p";
    let mut names = Vec::new();
    for (name, encoders) in FILES {
        ffmpeg(&format!("{source} {exact} {encoders} {name}"));
        ffmpeg(&format!(
            "-threads 4 -i {name} -bitexact -vf scale=200:-2,split[a][b];[a]vflip[c];[b][c]hstack \
             -f framemd5 {name}.frames"
        ));
        names.extend([name.to_string(), format!("{name}.frames")]);
    }
    let read = |name: &str| std::fs::read(scratch.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    names.into_iter().map(|name| (name.clone(), read(&name))).collect()
}
