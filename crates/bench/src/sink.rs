//! The server of the upload rows: reads as many bytes as announced, answers with how many came.
//!
//! Its replies depend on what the client sent and nothing else, as the scheme `track` asks; and
//! it does so little per byte that what is measured is the network, not the server.
//!
//! A connection: eight bytes, big-endian, say how many bytes follow; the answer is the same
//! number in the same spelling, once they are all here.

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
    let mut announced = [0; 8];
    stream.read_exact(&mut announced)?;
    let announced = u64::from_be_bytes(announced);
    let (mut got, mut buffer) = (0, vec![0; 256 << 10]);
    while got < announced {
        let most = buffer.len().min(usize::try_from(announced - got).unwrap_or(usize::MAX));
        match stream.read(&mut buffer[..most])? {
            0 => return Ok(()),
            n => got += n as u64,
        }
    }
    stream.write_all(&got.to_be_bytes())
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
        client.write_all(&100_000u64.to_be_bytes()).unwrap();
        client.write_all(&[7; 99_999]).unwrap();
        client.set_nonblocking(true).unwrap();
        let early = client.read(&mut [0; 8]).unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
        client.write_all(&[7]).unwrap();
        let mut answer = [0; 8];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_be_bytes(answer), 100_000);
        thread.join().unwrap().unwrap();
    }
}
