//! Who may allocate how much.
//!
//! Payload length is not what a journal costs: a one-byte segment ahead of a hole costs a heap block,
//! a descriptor and the spare room of the list it stands in. A budget that counts payload can be
//! overrun manyfold by a client that sends such segments. So every allocation is charged *before* it
//! is made, at the size a general-purpose allocator really takes for it, and credited *after* it is
//! freed: while a list moves to a bigger block both blocks are charged. Whatever is charged is
//! therefore an upper bound of what is held, at every instant and not only between calls.

use std::collections::VecDeque;

use crate::Budget;

/// The heap a block of `bytes` really takes: an 8-byte header, 16-byte steps, 32 bytes at least.
/// (glibc's figures; other allocators round by about as much.)
pub const fn allocated(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let rounded = bytes.saturating_add(8 + 15) & !15;
    if rounded < 32 { 32 } else { rounded }
}

/// The heap taken by a list of `capacity` elements.
pub const fn allocated_list<T>(capacity: usize) -> usize {
    allocated(capacity.saturating_mul(size_of::<T>()))
}

/// The budget of all parties together, such as all flows of a journal.
#[derive(Debug)]
pub struct Total {
    limit: usize,
    /// Invariant: `held <= limit`, and `held` is exactly the sum of what the table and every flow
    /// report as their heap.
    held: usize,
}

impl Total {
    /// Nothing is held.
    pub fn new(limit: usize) -> Self {
        Self { limit, held: 0 }
    }

    /// What is charged, in bytes.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The most that may be.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Takes back what was charged for something that has just been freed.
    pub fn credit(&mut self, bytes: usize) {
        assert!(bytes <= self.held, "credited {bytes} B of {} B held", self.held);
        self.held -= bytes;
    }

    #[cfg(test)]
    pub(crate) fn force_charge(&mut self, bytes: usize) {
        self.held += bytes;
    }
}

/// What one party (a flow, or the table of flows) may spend during one operation: its own limit and
/// that of all.
#[derive(Debug)]
pub struct Purse<'a> {
    total: &'a mut Total,
    limit: usize,
    /// Invariant: `held <= max(limit, what it was at the start)`; equal to the party's heap whenever
    /// no allocation is under way.
    held: usize,
}

impl<'a> Purse<'a> {
    /// `held` is what the party has been charged so far.
    pub fn new(total: &'a mut Total, held: usize, limit: usize) -> Self {
        assert!(held <= total.held, "a party holds {held} B of a total of {} B", total.held);
        Self { total, limit, held }
    }

    /// What the party is charged, in bytes.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether [`Self::charge`] would take it.
    pub fn can_afford(&self, bytes: usize) -> bool {
        self.refusal(bytes).is_none()
    }

    /// Pays for an allocation that is about to be made. On refusal nothing is charged.
    pub fn charge(&mut self, bytes: usize) -> Result<(), Budget> {
        if let Some(budget) = self.refusal(bytes) {
            return Err(budget);
        }
        self.held += bytes;
        self.total.held += bytes;
        assert!(self.total.held <= self.total.limit);
        Ok(())
    }

    /// Takes back what was charged for an allocation that has just been freed.
    pub fn credit(&mut self, bytes: usize) {
        assert!(bytes <= self.held, "credited {bytes} B of {} B held", self.held);
        self.held -= bytes;
        self.total.credit(bytes);
    }

    /// Which budget cannot take `bytes` more, if one cannot. The flow's own comes first: it names
    /// the party that can mend it.
    fn refusal(&self, bytes: usize) -> Option<Budget> {
        if bytes > self.limit.saturating_sub(self.held) {
            Some(Budget::Flow)
        } else if bytes > self.total.limit - self.total.held {
            Some(Budget::Total)
        } else {
            None
        }
    }
}

/// A list whose capacity only ever changes under a purse.
pub trait Growable<T> {
    /// Raises the capacity to exactly `capacity` elements; the elements may move.
    fn grow_to(&mut self, capacity: usize, purse: &mut Purse<'_>) -> Result<(), Budget>;
}

macro_rules! growable {
    ($list:ident) => {
        impl<T> Growable<T> for $list<T> {
            fn grow_to(&mut self, capacity: usize, purse: &mut Purse<'_>) -> Result<(), Budget> {
                let before = allocated_list::<T>(self.capacity());
                purse.charge(allocated_list::<T>(capacity))?;
                self.reserve_exact(capacity - self.len());
                // The library is free to round up, but does not; if it did, charges would be wrong.
                assert_eq!(self.capacity(), capacity, "a list must grow exactly as charged");
                purse.credit(before);
                Ok(())
            }
        }
    };
}

growable!(Vec);
growable!(VecDeque);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_costs_what_the_allocator_takes() {
        assert_eq!(allocated(0), 0);
        assert_eq!(allocated(1), 32);
        assert_eq!(allocated(24), 32);
        assert_eq!(allocated(25), 48);
        assert_eq!(allocated(100), 112);
        assert!(allocated(usize::MAX) > usize::MAX / 2);
    }

    #[test]
    fn a_refused_charge_changes_nothing_and_names_the_budget() {
        let mut total = Total::new(100);
        let mut flow = Purse::new(&mut total, 0, 60);
        assert_eq!(flow.charge(61), Err(Budget::Flow));
        assert_eq!(flow.charge(60), Ok(()));
        assert_eq!(flow.charge(1), Err(Budget::Flow));
        let mut other = Purse::new(&mut total, 0, usize::MAX);
        assert_eq!(other.charge(41), Err(Budget::Total));
        assert_eq!(other.charge(40), Ok(()));
        assert_eq!(total.held(), 100);
    }

    #[test]
    fn growing_a_list_pays_for_both_blocks_while_it_moves() {
        let mut total = Total::new(112 + 208);
        let mut purse = Purse::new(&mut total, 0, usize::MAX);
        let mut list: Vec<u8> = Vec::new();
        list.grow_to(100, &mut purse).unwrap();
        assert_eq!(purse.held(), 112);
        list.grow_to(200, &mut purse).unwrap();
        assert_eq!(purse.held(), 208);
        assert_eq!(list.grow_to(400, &mut purse), Err(Budget::Total));
        assert_eq!((purse.held(), list.capacity()), (208, 200));
    }
}
