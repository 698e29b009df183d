//! Serves the metrics over HTTP.
//!
//! Figures are read when they are asked for, so that a server without readers costs nothing.

use std::net::SocketAddr;

use tiny_http::{Header, Method, Request, Response, Server};

use super::exposition::Format;
use super::{refused, text};
use crate::failure::{FAILED, Failure, Outcome, note};

/// The page behind the address without a path.
const FRONT: &str = "<!doctype html><title>uslab</title><p><a href=\"/metrics\">metrics</a>\n";

/// Answers requests until a signal ends the program.
pub fn serve(address: SocketAddr, pids: &[i32]) -> Outcome {
    let fail = |reason: &dyn std::fmt::Display| {
        Failure::new(FAILED, format_args!("cannot listen on {address}: {reason}"))
    };
    // A process that does not exist is an error now, not an empty page later.
    text(pids, Format::OpenMetrics)?;
    let server = Server::http(address).map_err(|error| fail(&error))?;
    // Port 0 asks the kernel to choose: the line names the choice.
    note(&format!("uslab: metrics at http://{}/metrics\n", server.server_addr()));
    for request in server.incoming_requests() {
        answer(request, pids);
    }
    Err(fail(&"the socket was closed"))
}

/// Answers one request. A reader that went away is no error.
fn answer(request: Request, pids: &[i32]) {
    let path = request.url().split('?').next().unwrap_or_default();
    let is_read = matches!(request.method(), Method::Get | Method::Head);
    let (status, kind, body) = match path {
        _ if !is_read => (405, "text/plain", "only GET\n".to_owned()),
        "/metrics" => {
            let accept = request.headers().iter().find(|header| header.field.equiv("Accept"));
            let format = Format::accepted(accept.map(|header| header.value.as_str()));
            match text(pids, format) {
                Ok(text) => (200, format.content_type(), text),
                Err(failure) => {
                    refused(&failure);
                    (503, "text/plain", failure.message + "\n")
                }
            }
        }
        "/" => (200, "text/html; charset=utf-8", FRONT.to_owned()),
        _ => (404, "text/plain", "only /metrics\n".to_owned()),
    };
    let mut response = Response::from_string(body).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", kind) {
        response = response.with_header(header);
    }
    let _ = request.respond(response);
}
