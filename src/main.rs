//! `tandem`: the command line.

#![forbid(unsafe_code)]

mod bench;
mod chat;
mod cli;
mod client;
mod config;
mod doctor;
mod inspect;
mod probe;
mod roles;
mod run;
mod runtime_dir;
mod session;
mod supervisor;
mod up;

use clap::Parser;
use cli::{Cli, Command, ModelsCommand, UpArgs};

fn main() -> anyhow::Result<()> {
    let Cli { log, command } = Cli::parse();
    let command = command.unwrap_or_else(|| Command::Up(UpArgs::default()));
    let serves = matches!(
        command,
        Command::Up(_) | Command::Router(_) | Command::TargetWorker(_)
    );
    let log = log.unwrap_or_else(|| if serves { "info" } else { "warn" }.to_owned());
    service::init_telemetry(&log);
    match command {
        Command::Up(args) => up::run(&args, &log),
        Command::Chat(args) => chat::run(&args, &log),
        Command::Doctor(args) => doctor::run(&args),
        Command::Router(args) => roles::router(&args),
        Command::TargetWorker(args) => roles::target_worker(&args),
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Models(ModelsCommand::Inspect { model }) => inspect::run(&model),
        Command::Probe(probe) => probe::run(&probe),
    }
}
