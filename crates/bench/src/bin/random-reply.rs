//! A reply that is made by a program for each request, as those of CoRAL's measurements are: WebStone's
//! generator calls a random function for each byte. Run by a web server as a CGI program (RFC 3875), with
//! the number of bytes as the query.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let asked = std::env::var("QUERY_STRING").unwrap_or_default();
    let Ok(bytes) = asked.parse::<usize>() else {
        eprintln!("the query must be a number of bytes, and is {asked:?}");
        return ExitCode::FAILURE;
    };
    let body: Vec<u8> = (0..bytes).map(|_| fastrand::alphanumeric() as u8).collect();
    let head = format!("Content-Type: text/plain\r\nContent-Length: {bytes}\r\n\r\n");
    let mut out = io::stdout().lock();
    // Whoever has asked may be gone.
    let said = out.write_all(head.as_bytes()).and_then(|()| out.write_all(&body));
    said.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
