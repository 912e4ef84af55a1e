//! The ways between two processes by name.

use std::fmt::{self, Display, Formatter};

/// Ways between two processes, the best one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// Header in shared memory, payload in device memory exported to the peer.
    CudaIpc,
    /// The same with HIP.
    HipIpc,
    /// The same with GPUs emulated on the host, for tests.
    EmulatedIpc,
    /// POSIX shared memory.
    Shm,
    /// A framed stream.
    Tcp,
}

impl Display for Transport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CudaIpc => "cuda-ipc",
            Self::HipIpc => "hip-ipc",
            Self::EmulatedIpc => "emulated-ipc",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        })
    }
}
