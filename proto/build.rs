//! Compiles the contracts with a protobuf compiler written in Rust, so that no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=tandem");
    let contracts = protox::compile(
        [
            "tandem/draft/v1/draft.proto",
            "tandem/prefill/v1/prefill.proto",
            "tandem/stage/v1/stage.proto",
            "tandem/target/v1/target.proto",
            "tandem/worker/v1/memory.proto",
        ],
        ["."],
    )?;
    tonic_prost_build::configure().compile_fds(contracts)?;
    Ok(())
}
