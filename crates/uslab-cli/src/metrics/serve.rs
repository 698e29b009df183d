//! Serves the metrics over HTTP.
//!
//! Figures are read when they are asked for, so that a server without readers costs nothing.
//!
//! A few threads accept and answer connections, so a slow client holds up one of them, and further
//! connections wait in the backlog. A client has [`PATIENCE`] for its request, or [`CROWDED`] while
//! no thread is free for other clients. It has [`PATIENCE`] to take the answer. Only the head of a
//! request is read: no thread waits for a body, or believes a length that a client names.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::Named;
use super::exposition::Format;
use crate::failure::{FAILED, Failure, Outcome, complain, note};

/// The page behind the address without a path.
const FRONT: &str = "<!doctype html><title>uslab</title><p><a href=\"/metrics\">metrics</a>\n";
/// Connections that are served at once.
const MAX_CONNECTIONS: usize = 8;
/// Time for a request, and for its answer, in total.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for a request while all threads have one. Clients send it as they connect.
const CROWDED: Duration = Duration::from_millis(500);
/// Bytes of a request's line and headers.
const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 100;
/// Time for the client to close, and pieces of what it sends meanwhile.
const LINGER: Duration = Duration::from_secs(1);
const MAX_UNREAD_PARTS: usize = 16;
/// The wait after a connection could not be accepted: there may be no descriptor for it.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until a signal ends the program.
pub fn serve(address: SocketAddr, named: &Named) -> Outcome {
    let fail = |error: io::Error| Failure::new(FAILED, format_args!("cannot listen on {address}: {error}"));
    // A process that does not exist is an error now, not an empty page later.
    named.first_text(Format::OpenMetrics)?;
    let listener = TcpListener::bind(address).map_err(fail)?;
    let own = listener.local_addr().map_err(fail)?;
    let free = AtomicUsize::new(1);
    thread::scope(|scope| {
        for n in 1..MAX_CONNECTIONS {
            let server = thread::Builder::new().name(format!("http {n}"));
            free.fetch_add(1, Relaxed);
            // As many as the system allows; this one serves too.
            if server.spawn_scoped(scope, || answer_all(&listener, named, &free)).is_err() {
                free.fetch_sub(1, Relaxed);
                break;
            }
        }
        // Port 0 asks the kernel to choose: the line names the choice.
        note(&format!("uslab: metrics at http://{own}/metrics\n"));
        answer_all(&listener, named, &free)
    })
}

/// Answers one connection after the other. A client that went away is no error. `free` counts the
/// threads that have no client.
fn answer_all(listener: &TcpListener, named: &Named, free: &AtomicUsize) -> ! {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                free.fetch_sub(1, Relaxed);
                let _ = answer(stream, named, || free.load(Relaxed) == 0);
                free.fetch_add(1, Relaxed);
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// An answer.
struct Page {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Page {
    fn plain(status: &'static str, body: impl Into<String>) -> Page {
        Page { status, kind: "text/plain", body: body.into() }
    }
}

fn answer(mut stream: TcpStream, named: &Named, is_crowded: impl Fn() -> bool) -> io::Result<()> {
    let mut head = Vec::new();
    let (page, has_body) = match read_head(&mut stream, &mut head, is_crowded)? {
        Head::Whole => page(&head, named),
        Head::TooLong => (Page::plain("431 Request Header Fields Too Large", "too long\n"), true),
        Head::Damaged => (Page::plain("400 Bad Request", "not HTTP\n"), true),
    };
    let Page { status, kind, body } = page;
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if has_body {
        text.push_str(&body);
    }
    write(&mut stream, text.as_bytes())?;
    finish(&mut stream)
}

/// Waits until the client has the answer: a connection that is closed with bytes unread is reset,
/// and the answer may be lost. What it still sends is read, up to a bound.
fn finish(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + LINGER;
    let mut part = [0; MAX_HEAD_BYTES];
    for _ in 0..MAX_UNREAD_PARTS {
        stream.set_read_timeout(Some(left(deadline)?))?;
        if stream.read(&mut part)? == 0 {
            break;
        }
    }
    Ok(())
}

/// What was read of a request.
enum Head {
    Whole,
    TooLong,
    Damaged,
}

/// Reads up to the end of the head, or a little further.
fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>, is_crowded: impl Fn() -> bool) -> io::Result<Head> {
    let start = Instant::now();
    let mut part = [0; MAX_HEAD_BYTES];
    loop {
        let patience = if is_crowded() { CROWDED } else { PATIENCE };
        // Other clients may come meanwhile.
        stream.set_read_timeout(Some(left(start + patience)?.min(CROWDED)))?;
        let room = MAX_HEAD_BYTES - head.len();
        match stream.read(&mut part[..room]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => head.extend_from_slice(&part[..bytes]),
            Err(error) if is_pause(error.kind()) => continue,
            Err(error) => return Err(error),
        }
        match httparse::Request::new(&mut [httparse::EMPTY_HEADER; MAX_HEADERS]).parse(head) {
            Ok(httparse::Status::Complete(_)) => return Ok(Head::Whole),
            Ok(httparse::Status::Partial) if head.len() < MAX_HEAD_BYTES => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Ok(Head::TooLong),
            Err(_) => return Ok(Head::Damaged),
        }
    }
}

/// Whether a read ended without the client's doing: by a signal, or at its time limit.
fn is_pause(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The answer to a whole head, and whether its body is sent.
fn page(head: &[u8], named: &Named) -> (Page, bool) {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let _ = request.parse(head);
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    let method = request.method.unwrap_or_default();
    let page = match path {
        _ if !["GET", "HEAD"].contains(&method) => Page::plain("405 Method Not Allowed", "only GET\n"),
        "/metrics" => {
            let mut headers = request.headers.iter();
            let accept = headers.find(|header| header.name.eq_ignore_ascii_case("Accept"));
            let format = Format::accepted(accept.and_then(|header| std::str::from_utf8(header.value).ok()));
            match named.text(format) {
                Ok(body) => Page { status: "200 OK", kind: format.content_type(), body },
                Err(failure) => {
                    complain(&failure.message);
                    Page::plain("503 Service Unavailable", failure.message + "\n")
                }
            }
        }
        "/" => Page { status: "200 OK", kind: "text/html; charset=utf-8", body: FRONT.to_owned() },
        _ => Page::plain("404 Not Found", "only /metrics\n"),
    };
    (page, method != "HEAD")
}

/// Writes all of an answer, unless the client is too slow.
fn write(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time until a deadline: more than none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}
