//! Which nonces of a session have been seen (RFC 6479).
//!
//! Remembering every nonce would grow for ever, remembering only the highest would refuse every
//! datagram that the other link overtook. A window of bits below the highest nonce seen decides;
//! it is a ring of words, so that moving on clears whole words instead of shifting bits.

const WORDS: usize = 32;
const WORD_BITS: u64 = u64::BITS as u64;

/// How far behind the highest nonce a datagram may come. One word less than the ring holds: the
/// word being filled is partly ahead of the highest nonce (RFC 6479, section 2).
pub(crate) const WINDOW: u64 = (WORDS as u64 - 1) * WORD_BITS;

/// The window of one direction of one session.
#[derive(Debug)]
pub(crate) struct ReplayWindow {
    /// One more than the highest nonce seen; 0: none yet.
    end: u64,
    /// Bit `n % 64` of word `n / 64 % WORDS` tells whether nonce `n` was seen, for the nonces
    /// inside the window.
    words: [u64; WORDS],
}

impl ReplayWindow {
    pub fn new() -> ReplayWindow {
        ReplayWindow { end: 0, words: [0; WORDS] }
    }

    /// Whether a datagram with this nonce may still be opened. Decides before the cipher runs, so
    /// it must change nothing: the nonce is not proved yet.
    pub fn is_fresh(&self, nonce: u64) -> bool {
        // The last nonce is reserved by Noise (section 5.1).
        if nonce == u64::MAX {
            return false;
        }
        if nonce >= self.end {
            return true;
        }
        self.end - nonce <= WINDOW && self.words[word(nonce)] & bit(nonce) == 0
    }

    /// Notes an authenticated nonce that [`ReplayWindow::is_fresh`] has allowed.
    pub fn note(&mut self, nonce: u64) {
        assert!(self.is_fresh(nonce), "a nonce is noted once");
        if nonce >= self.end {
            // Words between the old end and the nonce hold nonces that left the window.
            let first = if self.end == 0 { 0 } else { (self.end - 1) / WORD_BITS + 1 };
            let last = nonce / WORD_BITS;
            if last >= first {
                for index in 0..(last - first + 1).min(WORDS as u64) {
                    self.words[((first + index) % WORDS as u64) as usize] = 0;
                }
                // A jump past the whole ring cleared every word, whatever it began with.
            }
            self.end = nonce + 1;
        }
        self.words[word(nonce)] |= bit(nonce);
    }
}

fn word(nonce: u64) -> usize {
    (nonce / WORD_BITS % WORDS as u64) as usize
}

fn bit(nonce: u64) -> u64 {
    1 << (nonce % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_nonce_is_fresh_once_and_not_behind_the_window() {
        let mut window = ReplayWindow::new();
        window.note(WINDOW);
        assert!(!window.is_fresh(WINDOW));
        assert!(window.is_fresh(1));
        assert!(!window.is_fresh(0), "too old");
        window.note(u64::MAX - 1);
        assert!(!window.is_fresh(u64::MAX), "reserved");
        assert!(!window.is_fresh(1));
    }

    proptest! {
        /// The window says what a set of every nonce seen would say.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0u64..5000, 0u64..3000), 1..200)) {
            let (mut window, mut seen, mut base) = (ReplayWindow::new(), BTreeSet::new(), 0u64);
            for (forward, back) in steps {
                base += forward / 8;
                let nonce = base.saturating_sub(back);
                let end = seen.last().map_or(0, |last: &u64| last + 1);
                let expected =
                    nonce >= end || (end - nonce <= WINDOW && !seen.contains(&nonce));
                prop_assert_eq!(window.is_fresh(nonce), expected);
                if expected {
                    window.note(nonce);
                    seen.insert(nonce);
                }
            }
        }
    }
}
