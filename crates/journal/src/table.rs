//! The flows by their keys, at little memory each.
//!
//! There may be a hundred thousand flows that sent one short request each, so what the table costs
//! per flow counts as much as the bytes. `std`'s hash map keeps key and value in its slots, of which
//! up to 9 in 16 stand empty, and rebuilds all of them at once when it grows. Here the flows stand in
//! fixed pages without gaps (the last flow moves into the place of one that closes), and only an
//! index of 8-byte entries has empty places: open addressing with linear probing, deletion by moving
//! later entries back, so there are no tombstones. Pages never move, and both shrink again.
//!
//! Keys are addresses chosen by clients; the hash is keyed at random so that they cannot be chosen
//! to collide. It is not `std`'s, which took a sixth of the journal thread's time: every record looks
//! its flow up several times.

use std::hash::Hash;

use ahash::RandomState;

use crate::Budget;
use crate::budget::{Growable, Purse, Total, allocated_list};

const FLOWS_PER_PAGE: usize = 32;
const INDEX_MIN: usize = 16;
const VACANT: u32 = u32::MAX;

/// Values, such as flows, by their keys, under a [`Total`].
#[derive(Debug)]
pub struct Table<K, V> {
    /// Invariant: a power of two long, or empty; at most 3 in 4 entries are occupied; each flow has
    /// exactly one, with no vacant entry between its home place and the place where it stands.
    index: Vec<Entry>,
    /// Invariant: all but the last are full; the last is not empty.
    pages: Vec<Vec<Slot<K, V>>>,
    len: usize,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The flow's place in the pages, or `VACANT`.
    slot: u32,
    /// Kept, so that entries can be moved without looking at the keys.
    hash: u32,
}

const NOBODY: Entry = Entry { slot: VACANT, hash: 0 };

#[derive(Debug)]
struct Slot<K, V> {
    key: K,
    flow: V,
}

impl<K: Eq + Hash + Copy, V> Default for Table<K, V> {
    /// An empty table, which holds no heap.
    fn default() -> Self {
        Self { index: Vec::new(), pages: Vec::new(), len: 0, hasher: RandomState::new() }
    }
}

impl<K: Eq + Hash + Copy, V> Table<K, V> {
    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Their keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.pages.iter().flatten().map(|slot| &slot.key)
    }

    /// The flow with this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let place = self.find(key, self.hash(key))?;
        Some(&self.slot(self.index[place].slot).flow)
    }

    /// The flow with this key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.find(key, self.hash(key))?;
        let slot = self.index[place].slot as usize;
        Some(&mut self.pages[slot / FLOWS_PER_PAGE][slot % FLOWS_PER_PAGE].flow)
    }

    /// Adds a flow. The key must not be there yet. On refusal nothing has changed.
    pub fn insert(&mut self, key: K, flow: V, total: &mut Total) -> Result<(), Budget> {
        let hash = self.hash(&key);
        assert!(self.find(&key, hash).is_none(), "a key has one flow");
        if self.len == VACANT as usize {
            return Err(Budget::Total);
        }
        let mut purse = Purse::new(total, self.heap_bytes(), usize::MAX);
        let made_room = self.make_room(&mut purse);
        assert_eq!(purse.held(), self.heap_bytes(), "charged and held heap of the table differ");
        made_room?;

        if self.len.is_multiple_of(FLOWS_PER_PAGE) {
            let mut page = Vec::new();
            page.grow_to(FLOWS_PER_PAGE, &mut purse)?;
            self.pages.push(page);
        }
        let slot = self.len as u32;
        self.pages[self.len / FLOWS_PER_PAGE].push(Slot { key, flow });
        self.len += 1;
        self.enter(Entry { slot, hash });
        Ok(())
    }

    /// Takes a flow out. Its own heap stays charged; the table's shrinks if it can.
    pub fn remove(&mut self, key: &K, total: &mut Total) -> Option<V> {
        let place = self.find(key, self.hash(key))?;
        let slot = self.index[place].slot as usize;
        self.vacate(place);

        let last_page = self.pages.last_mut().expect("a flow was found, so there is a page");
        let last = last_page.pop().expect("the last page is not empty");
        self.len -= 1;
        let removed = if slot == self.len {
            last
        } else {
            let place = self.find_slot(self.len as u32, self.hash(&last.key));
            self.index[place].slot = slot as u32;
            std::mem::replace(&mut self.pages[slot / FLOWS_PER_PAGE][slot % FLOWS_PER_PAGE], last)
        };

        let mut purse = Purse::new(total, self.heap_bytes(), usize::MAX);
        self.shrink(&mut purse);
        assert_eq!(purse.held(), self.heap_bytes(), "charged and held heap of the table differ");
        Some(removed.flow)
    }

    /// The heap charged for the table, in bytes, without that of the flows.
    pub fn heap_bytes(&self) -> usize {
        allocated_list::<Entry>(self.index.capacity())
            + allocated_list::<Vec<Slot<K, V>>>(self.pages.capacity())
            + allocated_list::<Slot<K, V>>(FLOWS_PER_PAGE) * self.pages.len()
    }

    fn hash(&self, key: &K) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    fn slot(&self, slot: u32) -> &Slot<K, V> {
        &self.pages[slot as usize / FLOWS_PER_PAGE][slot as usize % FLOWS_PER_PAGE]
    }

    /// The places of the index in the order in which an entry with `hash` is looked for.
    fn probe(&self, hash: u32) -> impl Iterator<Item = usize> + use<K, V> {
        let len = self.index.len();
        (0..len).map(move |i| (hash as usize + i) & (len - 1))
    }

    fn find(&self, key: &K, hash: u32) -> Option<usize> {
        for place in self.probe(hash) {
            let entry = self.index[place];
            if entry.slot == VACANT {
                return None;
            }
            if entry.hash == hash && self.slot(entry.slot).key == *key {
                return Some(place);
            }
        }
        None
    }

    fn find_slot(&self, slot: u32, hash: u32) -> usize {
        self.probe(hash)
            .find(|&place| self.index[place].slot == slot)
            .expect("every flow has an entry in the index")
    }

    fn enter(&mut self, entry: Entry) {
        let place = self
            .probe(entry.hash)
            .find(|&place| self.index[place].slot == VACANT)
            .expect("a quarter of the index is vacant");
        self.index[place] = entry;
    }

    /// Empties a place and moves back the entries that stand behind it because it was taken.
    fn vacate(&mut self, place: usize) {
        let mask = self.index.len() - 1;
        let (mut hole, mut place) = (place, place);
        loop {
            place = (place + 1) & mask;
            let entry = self.index[place];
            if entry.slot == VACANT {
                break;
            }
            let home = entry.hash as usize & mask;
            // May it stand in the hole? Yes if the hole is not before its home, going round.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.index[hole] = entry;
                hole = place;
            }
        }
        self.index[hole] = NOBODY;
    }

    fn make_room(&mut self, purse: &mut Purse<'_>) -> Result<(), Budget> {
        if (self.len + 1) * 4 > self.index.len() * 3 {
            self.rebuild_index((self.index.len() * 2).max(INDEX_MIN), purse)?;
        }
        if self.len.is_multiple_of(FLOWS_PER_PAGE) && self.pages.len() == self.pages.capacity() {
            let capacity = (self.pages.len() * 2).max(4);
            self.pages.grow_to(capacity, purse)?;
        }
        Ok(())
    }

    fn shrink(&mut self, purse: &mut Purse<'_>) {
        if self.pages.last().is_some_and(|page| page.is_empty()) {
            self.pages.pop();
            purse.credit(allocated_list::<Slot<K, V>>(FLOWS_PER_PAGE));
        }
        if self.len == 0 {
            let heap = self.heap_bytes();
            self.index = Vec::new();
            self.pages = Vec::new();
            purse.credit(heap);
        } else if self.len < self.index.len() / 4 && self.index.len() > INDEX_MIN {
            // Both indexes exist for a moment; if there is no room for that, it can wait.
            let _ = self.rebuild_index(self.index.len() / 2, purse);
        }
        if self.pages.len() < self.pages.capacity() / 4 {
            let _ = self.shrink_page_list(purse);
        }
    }

    fn shrink_page_list(&mut self, purse: &mut Purse<'_>) -> Result<(), Budget> {
        let mut pages = Vec::new();
        pages.grow_to(self.pages.capacity() / 2, purse)?;
        pages.append(&mut self.pages);
        let old = std::mem::replace(&mut self.pages, pages);
        let block = allocated_list::<Vec<Slot<K, V>>>(old.capacity());
        drop(old);
        purse.credit(block);
        Ok(())
    }

    fn rebuild_index(&mut self, len: usize, purse: &mut Purse<'_>) -> Result<(), Budget> {
        let mut index = Vec::new();
        index.grow_to(len, purse)?;
        index.resize(len, NOBODY);
        let old = std::mem::replace(&mut self.index, index);
        for entry in old.iter().filter(|entry| entry.slot != VACANT) {
            self.enter(*entry);
        }
        let block = allocated_list::<Entry>(old.capacity());
        drop(old);
        purse.credit(block);
        Ok(())
    }
}
