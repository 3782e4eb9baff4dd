//! One program, one frame, no wire: the seam through which the fixtures under `tests/` run the
//! programs (BPF_PROG_TEST_RUN). No product code comes here.

use libbpf_rs::ProgramInput;

use crate::{Datapath, Error, Settings};

/// `struct __sk_buff` of linux/bpf.h, of which only these fields are given or read.
const SK_BUFF_SIZE: usize = 192;
const MARK: usize = 8;
const IFINDEX: usize = 40;
const GSO_SIZE: usize = 176;

/// The programs that meet frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    ServiceIn,
    ClusterIn,
    NodeOut,
    /// Sees bare IP packets on its TUN device, but a frame that begins with an Ethernet header
    /// here, like every other.
    AdoptIn,
}

/// What the kernel knows of a frame beside its bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    pub mark: u32,
    /// Payload bytes per segment of a super-segment; 0: an ordinary frame.
    pub gso_size: u32,
}

/// What became of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `TC_ACT_*`.
    pub verdict: u32,
    pub frame: Vec<u8>,
    pub mark: u32,
}

impl Datapath {
    /// [`load`](Datapath::load), doing without what came after Linux 6.12.
    pub fn load_as_on_older_kernels(settings: &Settings) -> Result<Self, Error> {
        Self::load_with(settings, true)
    }

    /// Detaches what does not outlive a daemon.
    pub fn drop_gate(&mut self) {
        self.links.clear();
    }

    /// Runs `program` on `frame`, which enters as from a device that has not verified checksums.
    pub fn run(
        &self,
        program: Program,
        frame: &[u8],
        context: Context,
    ) -> libbpf_rs::Result<Outcome> {
        let progs = &self.skel.progs;
        let [service, cluster] = self.ifindexes;
        // Whom a frame is for is told by the address of the device that it enters from.
        let (program, device) = match program {
            Program::ServiceIn => (&progs.service_in, service),
            Program::ClusterIn => (&progs.cluster_in, cluster),
            Program::NodeOut => (&progs.node_out, service),
            Program::AdoptIn => (&progs.adopt_in, 0),
        };
        let mut before = [0u8; SK_BUFF_SIZE];
        before[MARK..MARK + 4].copy_from_slice(&context.mark.to_ne_bytes());
        before[GSO_SIZE..GSO_SIZE + 4].copy_from_slice(&context.gso_size.to_ne_bytes());
        before[IFINDEX..IFINDEX + 4].copy_from_slice(&device.to_ne_bytes());
        let mut after = [0u8; SK_BUFF_SIZE];
        let mut out = vec![0u8; frame.len() + 64];
        let output = program.test_run(ProgramInput {
            context_in: Some(&mut before),
            context_out: Some(&mut after),
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..Default::default()
        })?;
        let (verdict, length) = (output.return_value, output.data.map_or(0, |data| data.len()));
        out.truncate(length);
        let mark = u32::from_ne_bytes(after[MARK..MARK + 4].try_into().expect("four bytes"));
        Ok(Outcome { verdict, frame: out, mark })
    }
}
