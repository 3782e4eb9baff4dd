//! What passed and what did not, by reason.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::skel::types::counter;

macro_rules! counters {
    ($($raw:ident => $variant:ident $name:literal),* $(,)?) => {
        /// In the order of the C side's `enum counter`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Counter { $($variant),* }

        impl Counter {
            pub const ALL: &[Counter] = &[$(Counter::$variant),*];

            /// The name under which `status` shows it.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name),* }
            }

            fn index(self) -> u32 {
                match self { $(Counter::$variant => counter::$raw.0),* }
            }
        }
    };
}

counters! {
    COUNT_HELD_FLOWS => HeldFlows "held_flows",
    COUNT_UNHELD_FLOWS => UnheldFlows "unheld_flows",
    COUNT_CAPTURED_BYTES => CapturedBytes "captured_bytes",
    COUNT_CUT_SHORT => CutShort "gate_cut_short",
    COUNT_RECAPTURED_BYTES => RecapturedBytes "gate_recaptured_bytes",
    COUNT_REFUSED => Refused "gate_refused",
    COUNT_STRADDLING => Straddling "gate_straddling",
    COUNT_ORDERS => Orders "gate_orders",
    COUNT_ORDERS_STRAY => OrdersStray "gate_orders_stray",
    COUNT_LOST => Lost "gate_lost",
    COUNT_RECORDS_FAILED => RecordsFailed "gate_records_failed",
    COUNT_FENCED => Fenced "gate_fenced",
}

/// A reader of the counters.
#[derive(Debug)]
pub struct Counters {
    map: MapHandle,
}

impl Counters {
    pub(crate) fn new(map: MapHandle) -> Self {
        assert_eq!(Counter::ALL.len(), counter::COUNTERS.0 as usize, "every reason has a name");
        Self { map }
    }

    /// Sum over all processors since the gate was loaded.
    pub fn get(&self, which: Counter) -> u64 {
        let per_cpu = self.map.lookup_percpu(&which.index().to_ne_bytes(), MapFlags::ANY);
        let values = per_cpu.ok().flatten().unwrap_or_default();
        values
            .iter()
            .filter_map(|value| value.get(..8))
            .map(|value| u64::from_ne_bytes(value.try_into().expect("eight bytes")))
            .sum()
    }
}
