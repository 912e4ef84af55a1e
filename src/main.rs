//! `tandem`: the command line.

#![forbid(unsafe_code)]

mod bench;
mod chat;
mod cli;
mod client;
mod config;
mod doctor;
mod health;
mod inspect;
mod pair;
mod probe;
mod roles;
mod run;
mod runtime_dir;
mod session;
mod stages;
mod supervisor;
mod up;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command, ModelsCommand};

fn main() -> ExitCode {
    match dispatch() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as in `tandem models inspect FILE | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn dispatch() -> anyhow::Result<()> {
    let mut cli = Cli::parse();
    if cli.command.is_none() {
        // Parsed again rather than defaulted, so that `up` finds its environment variables.
        cli = Cli::parse_from(std::env::args_os().chain([OsString::from("up")]));
    }
    let Cli { log, command } = cli;
    let command = command.expect("clap leaves no command out that is there");
    let serves = matches!(
        command,
        Command::Up(_)
            | Command::Router(_)
            | Command::TargetWorker(_)
            | Command::TargetStage(_)
            | Command::DraftWorker(_)
            | Command::PrefillWorker(_)
    );
    let log = log.unwrap_or_else(|| if serves { "info" } else { "warn" }.to_owned());
    service::init_telemetry(&log);
    match command {
        Command::Up(args) => up::run(&args, &log),
        Command::Chat(args) => chat::run(&args, &log),
        Command::Doctor(args) => doctor::run(&args),
        Command::Health(args) => health::run(&args.endpoint),
        Command::Router(args) => roles::router(&args),
        Command::TargetWorker(args) => roles::target_worker(&args),
        Command::TargetStage(args) => roles::target_stage(&args),
        Command::DraftWorker(args) => roles::draft_worker(&args),
        Command::PrefillWorker(args) => roles::prefill_worker(&args),
        Command::Run(args) => run::run(&args, &log),
        Command::Bench(args) => bench::run(&args, &log),
        Command::Models(ModelsCommand::Inspect { model }) => inspect::run(&model),
        Command::Probe(probe) => probe::run(&probe),
    }
}
