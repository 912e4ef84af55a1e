//! `tandem`: the command line.

#![forbid(unsafe_code)]

mod bench;
mod cli;
mod inspect;
mod probe;
mod run;
mod session;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    match cli::Cli::parse().command {
        cli::Command::Run(args) => run::run(&args),
        cli::Command::Bench(args) => bench::run(&args),
        cli::Command::Models(cli::ModelsCommand::Inspect { model }) => inspect::run(&model),
        cli::Command::Probe(probe) => probe::run(&probe),
    }
}
