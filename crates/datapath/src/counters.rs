//! What passed and what did not, by reason.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::skel::types::counter;

macro_rules! counters {
    ($($raw:ident => $variant:ident $name:literal),* $(,)?) => {
        /// Reasons, in the order of the C side's `enum counter`.
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
    COUNT_RELAYED => Relayed "relayed",
    COUNT_LOGGED => Logged "logged",
    COUNT_LOGGED_BYTES => LoggedBytes "logged_bytes",
    COUNT_BOUNCED_OUT => BouncedOut "bounced_out",
    COUNT_BOUNCED_IN => BouncedIn "bounced_in",
    COUNT_REDIRECTED => Redirected "redirected",
    COUNT_HELD => Held "held",
    COUNT_CHILD_SILENCED => ChildSilenced "child_silenced",
    COUNT_SYN_ANSWERED => SynAnswered "syn_answered",
    COUNT_ACK_CLAMPED => AckClamped "ack_clamped",
    COUNT_SWALLOWED_BYTES => SwallowedBytes "swallowed_bytes",
    COUNT_ICMP_RELAYED => IcmpRelayed "icmp_relayed",
    COUNT_UNTRACKED => Untracked "untracked",
    COUNT_DROP_NO_ROLE => DropNoRole "drop_no_role",
    COUNT_DROP_RING_FULL => DropRingFull "drop_ring_full",
    COUNT_DROP_CHECKSUM => DropChecksum "drop_checksum",
    COUNT_DROP_MALFORMED => DropMalformed "drop_malformed",
    COUNT_DROP_FRAGMENT => DropFragment "drop_fragment",
    COUNT_DROP_WILD => DropWild "drop_wild",
    COUNT_DROP_NOT_PRIMARY => DropNotPrimary "drop_not_primary",
    COUNT_DROP_FENCED => DropFenced "drop_fenced",
    COUNT_DROP_CRASHED => DropCrashed "drop_crashed",
    COUNT_DROP_STRANGER => DropStranger "drop_stranger",
    COUNT_DROP_RETURNED => DropReturned "drop_returned",
    COUNT_ADOPT_STRAY => AdoptStray "adopt_stray",
    COUNT_ADOPT_OCCUPIED => AdoptOccupied "adopt_occupied",
    COUNT_ADOPT_REFUSED => AdoptRefused "adopt_refused",
    COUNT_FLOWS_FULL => FlowsFull "flows_full",
    COUNT_FAST_OPEN => FastOpen "fast_open",
    COUNT_ARP_SILENCED => ArpSilenced "arp_silenced",
    COUNT_ARP_REWRITTEN => ArpRewritten "arp_rewritten",
    COUNT_REDIRECT_FAILED => RedirectFailed "redirect_failed",
    COUNT_HELD_FLOWS => HeldFlows "held_flows",
    COUNT_UNHELD_FLOWS => UnheldFlows "unheld_flows",
    COUNT_CAPTURED_BYTES => CapturedBytes "captured_bytes",
    COUNT_CUT_SHORT => CutShort "gate_cut_short",
    COUNT_RECAPTURED_BYTES => RecapturedBytes "gate_recaptured_bytes",
    COUNT_REFUSED => Refused "gate_refused",
    COUNT_STRADDLING => Straddling "gate_straddling",
    COUNT_GATE_FENCED => GateFenced "gate_fenced",
    COUNT_PARKED => Parked "parked",
    COUNT_REPLY_OUT => ReplyOut "reply_out",
    COUNT_REPLY_IN => ReplyIn "reply_in",
    COUNT_REPLY_STALE => ReplyStale "reply_stale",
    COUNT_ORDERS => Orders "gate_orders",
    COUNT_ORDERS_SENT => OrdersSent "gate_orders_sent",
    COUNT_ORDERS_STALE => OrdersStale "gate_orders_stale",
    COUNT_ORDERS_STRAY => OrdersStray "gate_orders_stray",
    COUNT_OUTPUT_LOST => OutputLost "gate_output_lost",
    COUNT_EVENTS_LOST => EventsLost "gate_events_lost",
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

    /// Sum over all processors since the data path was loaded.
    pub fn get(&self, which: Counter) -> u64 {
        let per_cpu = self.map.lookup_percpu(&which.index().to_ne_bytes(), MapFlags::ANY);
        let values = per_cpu.ok().flatten().unwrap_or_default();
        values
            .iter()
            .filter_map(|value| value.get(..8))
            .map(|value| u64::from_ne_bytes(value.try_into().expect("eight bytes")))
            .sum()
    }

    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|&which| (which.name(), self.get(which)))
    }
}
