//! Which flows a role is about: all, or, where both nodes serve, those of one share (C6).

use datapath::{FlowKey, FlowTable, Share, Switchboard};

use crate::config::Roles;

/// The flows whose role on this node is decided together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope(Option<Share>);

impl Scope {
    /// Those into which the roles divide the flows, in the order of [`Self::index`].
    pub fn all(roles: Roles) -> Vec<Scope> {
        match roles {
            Roles::Single => vec![Scope(None)],
            Roles::Dual => Share::all().map(|share| Scope(Some(share))).collect(),
        }
    }

    /// Its place among so many.
    pub fn index(self) -> usize {
        self.0.map_or(0, Share::index)
    }

    /// The share, unless it is all flows.
    pub fn share(self) -> Option<Share> {
        self.0
    }

    /// Whether it has this flow.
    pub fn has(self, key: &FlowKey) -> bool {
        self.0.is_none_or(|share| key.share() == share)
    }

    pub fn table(self, table: FlowTable) -> FlowTable {
        match self.0 {
            Some(share) => table.of(share),
            None => table,
        }
    }

    pub fn switchboard(self, switchboard: Switchboard) -> Switchboard {
        match self.0 {
            Some(share) => switchboard.of(share),
            None => switchboard,
        }
    }

    /// For what is told of it: its number, which is the same on both nodes, if there are several.
    pub fn number(self) -> Option<usize> {
        self.0.map(Share::index)
    }
}

/// The one of these scopes that has the flow. Invariant: each flow is in one.
pub fn index_of(scopes: usize, key: &FlowKey) -> usize {
    if scopes == 1 { 0 } else { key.share().index() }
}
