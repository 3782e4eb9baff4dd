//! Sets of stream positions, as intervals.

/// Positions that have been seen: disjoint half-open intervals in ascending order that do not
/// touch each other. Streams have few holes, so a vector is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cover(Vec<(u64, u64)>);

impl Cover {
    /// Adds `start..end`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|&(_, e)| e < start);
        let last = self.0.partition_point(|&(s, _)| s <= end);
        let merged = self.0[first..last]
            .iter()
            .fold((start, end), |(s, e), &(os, oe)| (s.min(os), e.max(oe)));
        self.0.splice(first..last, [merged]);
    }

    /// Whether all of `start..end` is in it.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.parts(start, end).eq([(start, end)])
    }

    /// The parts of `start..end` that are in it.
    pub(crate) fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.0.partition_point(|&(_, e)| e <= start);
        self.0[first..]
            .iter()
            .take_while(move |&&(s, _)| s < end)
            .map(move |&(s, e)| (s.max(start), e.min(end)))
    }

    /// The parts of `start..end` that are not in it.
    pub(crate) fn holes(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let (mut holes, mut at) = (Vec::new(), start);
        for (s, e) in self.parts(start, end) {
            if at < s {
                holes.push((at, s));
            }
            at = e;
        }
        if at < end {
            holes.push((at, end));
        }
        holes
    }

    /// The end of what is there without a hole from position 0 on.
    pub(crate) fn prefix(&self) -> u64 {
        self.0.first().filter(|(s, _)| *s == 0).map_or(0, |&(_, e)| e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_set_of_numbers(
            ranges in prop::collection::vec((0u64..60, 0u64..12), 0..30),
            (from, len) in (0u64..60, 0u64..20),
        ) {
            let (mut cover, mut naive) = (Cover::default(), std::collections::BTreeSet::new());
            for (start, len) in ranges {
                cover.insert(start, start + len);
                naive.extend(start..start + len);
            }
            prop_assert!(cover.0.windows(2).all(|w| w[0].1 < w[1].0), "{cover:?}");
            let parts: Vec<u64> = cover.parts(from, from + len).flat_map(|(s, e)| s..e).collect();
            let inside: Vec<u64> = naive.range(from..from + len).copied().collect();
            prop_assert_eq!(&parts, &inside);
            let holes = cover.holes(from, from + len);
            let outside = (from..from + len).filter(|n| !naive.contains(n));
            prop_assert!(holes.iter().flat_map(|&(s, e)| s..e).eq(outside));
            prop_assert_eq!(cover.covers(from, from + len), inside.len() as u64 == len);
            prop_assert_eq!(cover.prefix(), (0..).find(|n| !naive.contains(n)).unwrap());
        }
    }
}
