//! nginx: static files, compression, a proxy with a cache, and TLS. Four clients send requests
//! while the server reloads its configuration repeatedly; every answer must be complete and
//! correct.

use std::path::Path;

use uslab_tests::harness::{Mode, Program, Scratch, expect_mapped, family, tool};

both_modes!(reload => answers_through_reloads);

const RELOADS: usize = 6;

fn answers_through_reloads(mode: Mode) {
    let scratch = Scratch::new("nginx");
    prepare(&scratch);
    let nginx = |args: &[&str]| {
        let program = Program::new(tool("nginx", "nginx-light")).arg("-p").arg(scratch.path());
        program.args(["-e", "stderr", "-c", "nginx.conf"]).args(args).limit_s(150)
    };
    nginx(&["-t"]).run_clean(&scratch, mode);
    let socket = scratch.join("http.sock");
    let server = nginx(&[])
        .start(&scratch, mode)
        .wait_until("its socket", |_| std::os::unix::net::UnixStream::connect(&socket).is_ok());

    let client = scratch.write("client.py", include_str!("nginx.py"));
    let stop = scratch.join("stop");
    let mut clients = Program::new(tool("python3", "python3"))
        .arg(client)
        .args([scratch.path(), &stop])
        .start(&scratch, mode);
    for reload in 0..RELOADS {
        let before = family(server.pid());
        // Each reload has another number of workers, and maps the cache's memory again.
        // The server may still read the file for the last reload, so it is replaced at once.
        let next = scratch.write("nginx.next", configuration(&scratch, 1 + reload % 3));
        std::fs::rename(next, scratch.join("nginx.conf")).expect("the next configuration");
        nginx(&["-s", "reload"]).run_clean(&scratch, mode);
        for _ in 0..1000 {
            if family(server.pid()).iter().any(|pid| !before.contains(pid)) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        expect_mapped(mode, server.pid(), 2);
        if clients.ended().is_some() {
            clients.fail("the clients ended before they were told to");
        }
    }
    std::fs::write(&stop, "").expect("a file that ends the clients");
    let outcome = clients.wait().expect_clean();
    let said = outcome.stdout();
    outcome.expect(said.ends_with("all answers are right\n"), "not all answers are right");

    nginx(&["-s", "quit"]).run_clean(&scratch, mode);
    let outcome = server.wait().expect_clean();
    let log = outcome.stderr();
    for word in ["[alert]", "[emerg]", "[crit]", "exited on signal"] {
        outcome.expect(!log.contains(word), &format!("the log has {word}"));
    }
}

/// The files to serve, a certificate, and the first configuration.
fn prepare(scratch: &Scratch) {
    let html = scratch.dir("html");
    for (name, bytes) in [("small", 500), ("middle", 70_000), ("large", 1_500_000)] {
        let text: String = (0..bytes / 10).map(|i| format!("{name:<3.3}{i:>6}\n")).collect();
        std::fs::write(html.join(format!("{name}.html")), text).expect("a file to serve");
    }
    scratch.write("nginx.conf", configuration(scratch, 2));
    let subject = ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"];
    let request = Program::new(tool("openssl", "openssl")).arg("req").args(subject);
    request.args(["-keyout", "key.pem", "-out", "certificate.pem"]).run_clean(scratch, Mode::Plain);
}

fn configuration(scratch: &Scratch, workers: usize) -> String {
    let user = if uslab_tests::harness::is_root() { "user root;" } else { "" };
    let dir: &Path = scratch.path();
    let dir = dir.display();
    format!(
        "daemon off; {user} worker_processes {workers}; pid {dir}/nginx.pid; error_log stderr notice;
        events {{ worker_connections 256; }}
        http {{
            access_log {dir}/access.log;
            gzip on; gzip_types text/html text/plain; gzip_min_length 100;
            client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
            uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
            proxy_cache_path {dir}/cache levels=1:2 keys_zone=cached:1m max_size=10m;
            upstream behind {{ server unix:{dir}/behind.sock; keepalive 4; }}
            server {{ listen unix:{dir}/behind.sock; root {dir}/html; }}
            server {{
                listen unix:{dir}/http.sock;
                listen unix:{dir}/https.sock ssl;
                ssl_certificate {dir}/certificate.pem; ssl_certificate_key {dir}/key.pem;
                root {dir}/html;
                location /proxied/ {{ proxy_pass http://behind/; proxy_http_version 1.1; proxy_set_header Connection ''; }}
                location /cached/ {{ proxy_pass http://behind/; proxy_cache cached; proxy_cache_valid 200 1s; }}
                location ~ ^/echo/(?<word>[a-z]+)/(?<rest>.*)$ {{ return 200 \"$word:$rest:$request_method\\n\"; }}
            }}
        }}\n"
    )
}
