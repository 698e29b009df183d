//! `uslab metrics`: what Prometheus and its tools read.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Running, Sandbox, outcome, wait_until};

/// One request over a fresh connection; returns the status line, the type and the body.
fn get(address: &str, path: &str, accept: &str) -> Option<(String, String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let kind = head.lines().find_map(|line| line.strip_prefix("Content-Type: ")).unwrap_or_default();
    Some((head.lines().next()?.to_owned(), kind.to_owned(), body.to_owned()))
}

/// `uslab metrics --listen` on a port of the kernel's choice, and its address.
fn server(sandbox: &Sandbox, pids: &[&str]) -> (Running, String) {
    let mut command = sandbox.uslab(&["metrics", "--listen", "0"]);
    let mut child = command.args(pids).stderr(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    let stderr = child.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("uslab: metrics at http://").expect("an address");
    let address = address.trim_end_matches("/metrics").to_owned();
    (Running(child), address)
}

/// Fails if promtool has anything to say about the text.
fn promtool(text: &str) {
    let mut command = Command::new("promtool");
    let mut child = command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (package prometheus)");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}

#[test]
fn one_process_is_printed_in_both_formats() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let pid = running.pid();
    let (code, out, err) = outcome(&mut sandbox.uslab(&["metrics", &pid]));
    assert_eq!((code, err.as_str()), (0, ""));
    let line = format!(
        "uslab_cache_active_objects{{command=\"sleep\",pid=\"{pid}\",cache=\"fake-64\",size=\"64\"}} 6300\n"
    );
    assert!(out.contains(&line) && out.ends_with("# EOF\n"), "{out}");
    assert!(out.contains("\n# TYPE uslab_cache_grows counter\n"), "{out}");
    let (code, out, _) = outcome(&mut sandbox.uslab(&["metrics", &pid, "--format", "prometheus"]));
    assert!(code == 0 && out.contains(&line) && !out.contains("# EOF"), "{out}");
    promtool(&out);
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let sandbox = Sandbox::new();
    for arguments in [&["metrics", "2147483647"][..], &["metrics", "--listen", "0", "2147483647"]] {
        let (code, out, err) = outcome(&mut sandbox.uslab(arguments));
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("no such process: 2147483647"), "{err}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, _, err) = outcome(&mut sandbox.uslab(&["metrics", "--listen", &address]));
    assert!(code == 1 && err.contains(&format!("cannot listen on {address}")), "{err}");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["metrics", "--listen", "everywhere"]));
    assert!(code == 2 && err.contains("not IP:PORT or PORT"), "{err}");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["metrics", "-o", "/nonexistent/x.prom"]));
    assert!(code == 1 && err.contains("cannot write /nonexistent/x.prom"), "{err}");
    // A device or a pipe stays what it is.
    let pipe = sandbox.root.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let path = pipe.to_str().expect("UTF-8");
    let (code, _, err) = outcome(&mut sandbox.uslab(&["metrics", "-o", path]));
    assert!(code == 1 && err.contains(&format!("cannot write {path}: it is not a regular file")), "{err}");
    assert!(!fs::metadata(&pipe).expect("there").is_file());
}

#[test]
fn a_file_for_the_textfile_collector_is_replaced_whole() {
    let sandbox = Sandbox::new();
    let (one, two) = (sandbox.sleeper(&[]), sandbox.sleeper(&[("USLAB_RSEQ", "0")]));
    let folder = sandbox.root.join("textfile");
    fs::create_dir(&folder).expect("a folder");
    let file = folder.join("uslab.prom");
    fs::write(&file, "old").expect("written");
    let (code, out, err) = outcome(sandbox.uslab(&["metrics", "-o"]).arg(&file));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let text = fs::read_to_string(&file).expect("readable");
    for (running, mode) in [(&one, "rseq"), (&two, "locked")] {
        let line = format!("uslab_build_info{{command=\"sleep\",pid=\"{}\",version=", running.pid());
        let line = text.lines().find(|found| found.starts_with(&line)).expect("listed");
        assert!(line.contains(&format!("mode=\"{mode}\"")), "{line}");
    }
    promtool(&text);
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1, "no other file stays");
}

#[test]
fn a_server_answers_in_the_format_that_it_is_asked_for() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let (_server, address) = server(&sandbox, &[&running.pid()]);
    let (status, kind, body) = get(&address, "/metrics", "*/*").expect("an answer");
    assert_eq!(
        (status.as_str(), kind.as_str()),
        ("HTTP/1.1 200 OK", "text/plain; version=0.0.4; charset=utf-8")
    );
    promtool(&body);
    let (_, kind, body) =
        get(&address, "/metrics?x=1", "application/openmetrics-text;version=1.0.0").expect("an answer");
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    assert!(get(&address, "/", "*/*").expect("an answer").2.contains("href=\"/metrics\""));
    assert!(get(&address, "/other", "*/*").expect("an answer").0.contains("404"));
    drop(running);
    let (status, _, body) = get(&address, "/metrics", "*/*").expect("an answer");
    assert!(status.contains("503") && body.contains("no such process"), "{status} {body}");
}

/// A connection that has sent `text`, and on which nothing is read.
fn connect(address: &str, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(text.as_bytes()).expect("written");
    stream
}

/// All that a server sends on a connection.
fn answer(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("readable");
    text
}

#[test]
fn a_body_is_neither_believed_nor_waited_for() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let (_server, address) = server(&sandbox, &[&running.pid()]);
    for length in ["2000", "18446744073709551615", "99999999999999999999"] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        let text = answer(connect(&address, &request));
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("fake-64"), "{length}: {text}");
    }
    let text = answer(connect(&address, "POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"));
    assert!(text.starts_with("HTTP/1.1 405 ") && text.ends_with("\r\n\r\nonly GET\n"), "{text}");
    let text = answer(connect(&address, "HEAD /metrics HTTP/1.0\r\n\r\n"));
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("\r\nContent-Length: ") && !head.contains("Content-Length: 0"), "{head}");
    assert_eq!(body, "");
    assert!(answer(connect(&address, "no HTTP\r\n\r\n")).starts_with("HTTP/1.1 400 "));
    let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(8192 - 19));
    assert!(answer(connect(&address, &long)).starts_with("HTTP/1.1 431 "));
}

#[test]
fn a_client_that_does_not_read_holds_up_no_other() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    // A page that no socket buffer takes.
    let file = sandbox.snapshots.join(running.pid());
    let mut bytes = fs::read(&file).expect("a snapshot");
    let records: u32 = 20_000;
    let first = bytes[12_288..][..256].to_vec();
    for n in 0..records {
        let mut record = first.clone();
        let name = format!("cache {n}");
        record[8..56].fill(0);
        record[8..8 + name.len()].copy_from_slice(name.as_bytes());
        bytes[12_288 + n as usize * 256..][..256].copy_from_slice(&record);
    }
    bytes[36..40].copy_from_slice(&records.to_ne_bytes());
    fs::write(&file, &bytes).expect("written");
    let (_server, address) = server(&sandbox, &[&running.pid()]);
    let size = get(&address, "/metrics", "*/*").expect("an answer").2.len();
    assert!(size > 16 << 20, "{size}");

    let ask = "GET /metrics HTTP/1.1\r\n\r\n";
    let mut slow = vec![connect(&address, ask)];
    assert!(get(&address, "/", "*/*").expect("an answer").2.contains("metrics"));
    // Nor do as many as are served at once, of which some ask for nothing.
    slow.extend((1..8).map(|n| connect(&address, if n % 2 == 0 { ask } else { "GET / HT" })));
    assert!(get(&address, "/", "*/*").expect("an answer").2.contains("metrics"));
    drop(slow);
}

#[test]
fn silent_clients_hold_up_others_for_seconds_at_most() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let (_server, address) = server(&sandbox, &[&running.pid()]);
    let silent: Vec<_> = (0..40).map(|_| connect(&address, "")).collect();
    let start = Instant::now();
    assert!(get(&address, "/", "*/*").expect("an answer").2.contains("metrics"));
    // A fifth of what eight threads would wait for forty clients, five seconds for each.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_file_of_several_processes_is_written_until_the_last_has_ended() {
    let sandbox = Sandbox::new();
    let (one, two) = (sandbox.sleeper(&[]), sandbox.sleeper(&[]));
    let (first, second) = (one.pid(), two.pid());
    let file = sandbox.root.join("uslab.prom");
    let path = file.to_str().expect("UTF-8");
    let mut writing = sandbox.uslab(&["metrics", &first, &second, "-o", path, "--every", "1"]);
    let mut writing = Running(writing.stderr(Stdio::piped()).spawn().expect("started"));
    let mut errors = BufReader::new(writing.0.stderr.take().expect("a pipe"));
    let has = |pid: &str| {
        fs::read_to_string(&file).is_ok_and(|text| text.contains(&format!("pid=\"{pid}\",cache=\"fake-64\"")))
    };
    wait_until("both are written", || has(&first) && has(&second));
    drop(one);
    wait_until("one is left out", || !has(&first));
    assert!(has(&second));
    let mut line = String::new();
    errors.read_line(&mut line).expect("readable");
    assert_eq!(line, format!("uslab: no such process: {first}\n"));
    drop(two);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("readable");
    assert_eq!(rest.lines().count(), 1, "each is told once: {rest}");
    assert!(rest.contains("no such process"), "{rest}");
    assert_eq!(writing.0.wait().expect("ended").code(), Some(1));
    assert_eq!(fs::read_to_string(&file).expect("there"), "", "no figures of the dead are left");
}

#[test]
fn prometheus_scrapes_it() {
    let sandbox = Sandbox::new();
    let running = sandbox.sleeper(&[]);
    let (_server, address) = server(&sandbox, &[]);
    let config = sandbox.root.join("prometheus.yml");
    let text = format!(
        "scrape_configs:\n- job_name: uslab\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{address}']\n"
    );
    fs::write(&config, text).expect("written");
    // Another test may take the port before Prometheus does; it then ends, and the wait fails.
    let own = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").to_string();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", sandbox.root.join("data").display()));
    command.arg(format!("--web.listen-address={own}"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _prometheus = Running(command.spawn().expect("prometheus (package prometheus)"));
    let value = |query: &str| {
        let (_, _, body) = get(&own, &format!("/api/v1/query?query={query}"), "*/*")?;
        let json: serde_json::Value = serde_json::from_str(&body[body.find('{')?..=body.rfind('}')?]).ok()?;
        let result = &json["data"]["result"][0];
        Some((result["metric"].clone(), result["value"][1].as_str()?.to_owned()))
    };
    wait_until("Prometheus has scraped", || value("up").is_some_and(|(_, value)| value == "1"));
    let found = value("uslab_cache_active_objects%7Bcache=%22fake-64%22%7D");
    let (labels, objects) = found.expect("scraped");
    assert_eq!((labels["pid"].as_str(), objects.as_str()), (Some(running.pid().as_str()), "6300"));
    assert_eq!(value("uslab_cache_grows_total%7Bcache=%22fake-64%22%7D").expect("scraped").1, "100");
}
