//! Messages to a thread that sleeps in poll(2): a channel whose sender also rings a bell.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Sending end; cheap to clone.
pub struct Post<T> {
    queue: Sender<T>,
    bell: Arc<EventFd>,
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: self.bell.clone() }
    }
}

impl<T> Post<T> {
    /// False: the receiving thread has ended.
    pub fn send(&self, message: T) -> bool {
        // A bell that cannot be rung again has been rung already.
        self.queue.send(message).is_ok() && self.bell.write(1).is_ok_and(|n| n > 0)
    }
}

/// Receiving end.
pub struct Inbox<T> {
    queue: Receiver<T>,
    bell: Arc<EventFd>,
}

impl<T> Inbox<T> {
    pub fn new() -> std::io::Result<(Post<T>, Inbox<T>)> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let bell = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let (sender, receiver) = mpsc::channel();
        Ok((Post { queue: sender, bell: bell.clone() }, Inbox { queue: receiver, bell }))
    }

    /// The next message, if there is one.
    pub fn take(&self) -> Option<T> {
        self.queue.try_recv().ok()
    }

    /// Silences the bell; call before taking what is there.
    pub fn hush(&self) {
        // EAGAIN: it was silent.
        let _ = self.bell.read();
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
