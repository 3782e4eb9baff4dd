//! Clients that ask at a rate of their own, whatever the answers do.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::Context;
use demo::clock::now_ns;

use crate::load::Http;

/// What became of a request whose time had come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// When it should have been sent, on [`now_ns`]'s clock.
    pub due_ns: u64,
    /// When its reply was complete.
    pub done_ns: u64,
}

/// Clients that ask at a rate of their own, whatever the answers do.
#[derive(Clone, Copy, Debug)]
pub struct Paced {
    /// How many.
    pub clients: usize,
    /// How often each asks.
    pub pause: Duration,
    /// For how long.
    pub span: Duration,
    /// Whether each has one connection for all of its requests, or one for each.
    pub keep_alive: bool,
}

impl Paced {
    /// Asks for `path`; every answer, in no order. Calls `ready` when all clients have had their
    /// first answer, right before the clock starts.
    ///
    /// A request counts from when it was due, not from when it could be sent: a client that waits
    /// for an answer would otherwise hide the requests that it did not send meanwhile.
    ///
    /// # Errors
    /// A reply is not right, or a connection breaks.
    pub fn run(
        &self,
        at: SocketAddr,
        path: &str,
        ready: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Answer>> {
        let (connected, start) = (Barrier::new(self.clients + 1), Barrier::new(self.clients + 1));
        let (connected, start) = (&connected, &start);
        std::thread::scope(|scope| {
            let client = |number| {
                scope.spawn(move || {
                    let opened = Http::connect(at, path).and_then(|mut h| h.get().map(|_| h));
                    connected.wait();
                    start.wait();
                    self.client(number, at, path, opened?)
                })
            };
            let threads: Vec<_> = (0..self.clients).map(client).collect();
            connected.wait();
            let go = ready();
            start.wait();
            let mut answers = Vec::new();
            for thread in threads {
                answers.extend(thread.join().expect("a client does not panic")?);
            }
            go.map(|()| answers)
        })
    }

    fn client(
        &self,
        number: usize,
        at: SocketAddr,
        path: &str,
        mut http: Http,
    ) -> anyhow::Result<Vec<Answer>> {
        let [pause_ns, span_ns] = [self.pause, self.span].map(|d| d.as_nanos() as u64);
        let (mut answers, begin_ns) = (Vec::new(), now_ns());
        // Spread evenly, or all of them would ask at once and wait for each other.
        let mut due_ns = begin_ns + pause_ns * number as u64 / self.clients as u64;
        while due_ns < begin_ns + span_ns {
            std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
            let asked = match self.keep_alive {
                true => http.get().map(|_| ()),
                false => Http::once(at, path),
            };
            asked.with_context(|| {
                let after_ms = (due_ns - begin_ns) / 1_000_000;
                format!("client {number}, the request due {after_ms} ms after the beginning")
            })?;
            answers.push(Answer { due_ns, done_ns: now_ns() });
            due_ns += pause_ns;
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::server;

    #[test]
    fn requests_that_could_not_be_sent_count_from_when_they_were_due() {
        let ms = Duration::from_millis;
        let at = server(1, ms(50));
        let paced = Paced { clients: 1, pause: ms(5), span: ms(100), keep_alive: true };
        let answers = paced.run(at, "/", || Ok(())).unwrap();
        assert_eq!(answers.len(), 20, "one every 5 ms");
        let late = |a: &&Answer| a.done_ns - a.due_ns > 10_000_000;
        let late = answers.iter().filter(late).count();
        assert!(late >= 8, "those behind the slow one waited as well: {late}");
    }
}
