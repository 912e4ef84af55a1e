//! The gRPC contracts between the processes, and the code generated from them.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the .proto files are the documentation")]

/// A draft worker: `tandem/draft/v1/draft.proto`.
pub mod draft {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.draft.v1");
    }
}

/// A prefill worker: `tandem/prefill/v1/prefill.proto`.
pub mod prefill {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.prefill.v1");
    }
}

/// A stage of a split target: `tandem/stage/v1/stage.proto`.
pub mod stage {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.stage.v1");
    }
}

/// A target worker: `tandem/target/v1/target.proto`.
pub mod target {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.target.v1");
    }
}

/// All workers: `tandem/worker/v1/memory.proto`.
pub mod worker {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.worker.v1");
    }
}
