//! A write to a pipe of the program's, or to a stream within it, that is longer than what there may be room for. It is made in pieces, each
//! in one turn and with a record of its own, and others go on between them, who may read.

use recording::{Call, Hasher, Head, Left, Payload};
use systable::Sysno;

use super::engine::Turn;
use super::group::turns;
use super::kinds;
use super::report::Difference;
use super::waits::{self, PIPE_BUF};
use super::walk::{Of, bytes};
use crate::dispatch::{self, Outcome};
use crate::frame::Context;
use crate::sys::NOT_MADE;
use crate::thread::Thread;

/// Whether a call, which writes more than a piece to something inside of the program, can be made so.
pub fn is_possible(name: Sysno, fd: usize) -> bool {
    const SO_TYPE: usize = 3;
    const SOCK_STREAM: u32 = 1;
    let is_stream = || kinds::socket_option(fd, SO_TYPE) == Some(SOCK_STREAM);
    name == Sysno::write && (kinds::is_pipe(fd) || is_stream())
}

/// What was written so far, and what is left.
struct Progress {
    done: usize,
    len: usize,
}

impl Progress {
    /// What the program is told, if this is the last piece.
    fn add(&mut self, result: isize) -> Option<isize> {
        match result {
            // Nothing more, because of a signal, or of nobody who reads.
            ..=0 if self.done > 0 => Some(self.done.cast_signed()),
            ..=0 => Some(result),
            written => {
                self.done += written.cast_unsigned();
                (self.done == self.len).then_some(self.done.cast_signed())
            }
        }
    }
}

impl Of<'_> {
    pub(super) fn record_long(
        &self,
        turn: &mut Turn,
        thread: &'static Thread,
        context: &mut Context,
    ) -> Outcome {
        let events = linux_raw_sys::general::POLLOUT;
        let mut progress = Progress { done: 0, len: self.args[2] };
        loop {
            let stopped = waits::until_ready(turn, thread, self.name, self.args, events);
            if stopped == Some(NOT_MADE) && progress.done == 0 {
                thread.not_made.set(true);
                return Outcome::Value(NOT_MADE);
            }
            let args = self.piece(&progress, PIPE_BUF.min(progress.len - progress.done));
            let result = match stopped {
                Some(NOT_MADE) => 0,
                Some(error) => error,
                None => {
                    turns().makes(args.0);
                    let made = turn.during(|| dispatch::call(thread, args.0, &args.1, context));
                    let Outcome::Value(result) = made else { unreachable!("it returns") };
                    // A signal has come a moment before.
                    if result == NOT_MADE {
                        if progress.done == 0 { result } else { 0 }
                    } else {
                        result
                    }
                }
            };
            thread.not_made.set(result == NOT_MADE);
            if result == NOT_MADE {
                return Outcome::Value(NOT_MADE);
            }
            let hash = self.hash_of_piece(&progress, result);
            let told = progress.add(result);
            if !turn.is_over() {
                let (number, digest) = (self.number() as u16, self.digest());
                let call = Call { number, digest, result: result as i64, payload: hash };
                turn.append(&Head::Call(call));
            }
            if !turn.is_over() {
                turn.yields(false);
            }
            if let Some(told) = told {
                return Outcome::Value(told);
            }
        }
    }

    pub(super) fn replay_long(
        &self,
        turn: &mut Turn,
        thread: &'static Thread,
        context: &mut Context,
    ) -> Outcome {
        let mut progress = Progress { done: 0, len: self.args[2] };
        loop {
            turn.gives_way(Left::Before);
            let is_signal =
                !turn.is_over() && progress.done == 0 && turn.engine().take_signal(thread, true);
            if is_signal {
                return Outcome::Value(NOT_MADE);
            }
            if turn.is_over() || turn.stops() {
                // What is left is written for real.
                let (number, args) = self.piece(&progress, progress.len - progress.done);
                let Outcome::Value(rest) = dispatch::call(thread, number, &args, context) else {
                    unreachable!("it returns")
                };
                return Outcome::Value(match rest {
                    NOT_MADE if progress.done == 0 => NOT_MADE,
                    ..=0 if progress.done > 0 => progress.done.cast_signed(),
                    rest => progress.done.cast_signed() + rest,
                });
            }
            let (recorded, _, place) = self.recorded(turn, context);
            let result = recorded.result as isize;
            if result > 0 {
                let (number, args) = self.piece(&progress, result.cast_unsigned());
                let Outcome::Value(now) = dispatch::call(thread, number, &args, context) else {
                    unreachable!("it returns")
                };
                if now != result {
                    let (recorded, replayed) = (recorded.result, now);
                    self.differs(turn, &Difference::Result { recorded, replayed }, context);
                }
            }
            if recorded.payload != self.hash_of_piece(&progress, result) {
                self.differs(turn, &Difference::Bytes, context);
            }
            turn.engine().go_on(Head::Call(recorded), place);
            turn.gives_way(Left::Behind);
            if let Some(told) = progress.add(result) {
                if !turn.is_over() {
                    turn.engine().take_signal(thread, false);
                }
                return Outcome::Value(told);
            }
        }
    }

    /// The call that writes the next piece.
    fn piece(&self, progress: &Progress, len: usize) -> (usize, crate::sys::Args) {
        let mut args = *self.args;
        args[1] += progress.done;
        args[2] = len;
        (self.number(), args)
    }

    fn hash_of_piece(&self, progress: &Progress, result: isize) -> Payload {
        if result <= 0 {
            return Payload::Nothing;
        }
        let mut hasher = Hasher::new();
        // SAFETY: the kernel has read it a moment ago.
        hasher.add(unsafe { bytes(self.args[1] + progress.done, result.cast_unsigned()) });
        Payload::Hash(hasher.hash() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn what_a_program_is_told_of_its_pieces() {
        let mut all = Progress { done: 0, len: 10 };
        assert_eq!((all.add(4), all.add(6)), (None, Some(10)));
        let mut some = Progress { done: 0, len: 10 };
        assert_eq!((some.add(4), some.add(-32)), (None, Some(4)));
        let mut interrupted = Progress { done: 0, len: 10 };
        assert_eq!((interrupted.add(4), interrupted.add(0)), (None, Some(4)));
        assert_eq!(Progress { done: 0, len: 10 }.add(-32), Some(-32));
    }
}
