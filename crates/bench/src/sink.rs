//! The server of the upload rows: reads as many bytes as announced, answers with how many came.
//!
//! Its replies depend on what the client sent and nothing else, as the scheme `track` asks; it
//! speaks HTTP/1, as the scheme `message` asks; and it does so little per byte that what is measured
//! is the network, not the server.
//!
//! A connection: one request with a `Content-Length`, which must be spelled so; the body of the
//! answer is the number of bytes of the request's body, in decimal digits, once they are all here.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::Context;

/// Serves at `at` until killed, a thread per connection.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve(at: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    loop {
        // A connection that dies in the queue is its client's affair.
        let Ok((stream, _)) = listener.accept() else { continue };
        std::thread::spawn(move || {
            // So is one that ends early: the client sees it by the missing answer.
            let _ = swallow(stream);
        });
    }
}

fn swallow(mut stream: TcpStream) -> io::Result<()> {
    let (mut got, mut buffer) = (0, vec![0; 256 << 10]);
    let head = loop {
        match stream.read(&mut buffer[got..])? {
            0 => return Ok(()), // closed, or the head does not end
            n => got += n,
        }
        if let Some(at) = buffer[..got].windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&buffer[..head]);
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let announced: u64 = length.and_then(|l| l.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let mut got = (got - head) as u64;
    while got < announced {
        let most = buffer.len().min(usize::try_from(announced - got).unwrap_or(usize::MAX));
        match stream.read(&mut buffer[..most])? {
            0 => return Ok(()),
            n => got += n as u64,
        }
    }
    let body = got.to_string();
    let length = body.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_number_of_bytes_and_comes_after_the_last_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let thread = std::thread::spawn(move || swallow(server));
        client.write_all(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n").unwrap();
        client.write_all(&[7; 99_999]).unwrap();
        client.set_nonblocking(true).unwrap();
        let early = client.read(&mut [0; 8]).unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
        client.write_all(&[7]).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\n100000"), "{answer}");
        thread.join().unwrap().unwrap();
    }
}
