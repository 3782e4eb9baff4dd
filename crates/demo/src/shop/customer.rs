//! A client of the shop who speaks when he is told to, in pieces of any size.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;

use super::client::{Dial, Failure, Notes, Receipt, check};
use super::reply::{Fault, Inbox};
use super::request::{Kind, Request};

/// He has one connection, and asks for one thing after the other.
#[derive(Debug)]
pub struct Customer {
    stream: TcpStream,
    patience: Duration,
    rng: Rng,
    notes: Notes,
}

impl Customer {
    /// Connects. `patience`: how long he waits for the next byte.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn connect(dial: &Dial, patience: Duration) -> anyhow::Result<Customer> {
        let stream = dial().context("cannot connect to the shop")?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Customer { stream, patience, rng: Rng::with_seed(1), notes: Notes::default() })
    }

    /// What he will ask for next.
    pub fn request(&mut self, kind: Kind) -> Request {
        let id = format!("customer-{}", self.notes.sent.len() + 1);
        self.notes.sent.push((id.clone(), kind));
        Request::draw(&mut self.rng, id, kind)
    }

    /// Says a piece of it.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn say(&mut self, piece: &[u8]) -> io::Result<()> {
        self.stream.write_all(piece)
    }

    /// Whether all that he has said is acknowledged.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn is_heard(&self) -> io::Result<bool> {
        let mut unacknowledged = 0;
        // SAFETY: the descriptor is open, and the kernel writes one int.
        let outcome =
            unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &mut unacknowledged) };
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(unacknowledged == 0) }
    }

    /// The reply, which must be to this request, and whole.
    ///
    /// # Errors
    /// It is not; or none comes.
    pub fn hear(&mut self, request: &Request) -> Result<&Receipt, Failure> {
        let mut inbox = Inbox::new(&self.stream, false, self.patience, &mut self.notes.stalls);
        let receipt = inbox.reply(request.kind == Kind::Head).and_then(|reply| {
            inbox.expect_nothing()?;
            check(request, &reply, &HashSet::new(), &[])
        });
        let failure =
            |Fault { trouble, detail }| Failure { trouble, id: request.id.clone(), detail };
        self.notes.receipts.push(receipt.map_err(failure)?);
        Ok(self.notes.receipts.last().expect("it was noted a moment ago"))
    }

    /// Goes home.
    pub fn leave(self) -> Notes {
        self.notes
    }
}
