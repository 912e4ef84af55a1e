//! `tandem health`: whether a router or a worker serves.

use std::io::{Write, stdout};
use std::str::FromStr;

use anyhow::{Context, Result};
use service::Endpoint;

use crate::client::Server;
use crate::up;

/// Whom to ask.
#[derive(Clone, Debug)]
pub(crate) enum HealthEndpoint {
    /// A router, by its address.
    Router(String),
    /// A worker of any role.
    Worker(Endpoint),
}

impl FromStr for HealthEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text
            .strip_prefix("http://")
            .is_some_and(|host| !host.is_empty())
        {
            return Ok(Self::Router(text.to_owned()));
        }
        let worker = text.parse().map(Self::Worker);
        worker.map_err(|_| "expected http://HOST:PORT, unix:PATH or tcp:HOST:PORT".to_owned())
    }
}

pub(crate) fn run(endpoint: &HealthEndpoint) -> Result<()> {
    up::runtime()?.block_on(async {
        match endpoint {
            HealthEndpoint::Router(url) => Server::new(url, None)?.check_health().await,
            HealthEndpoint::Worker(endpoint) => worker_api::check_health(endpoint)
                .await
                .with_context(|| endpoint.to_string()),
        }
    })?;
    writeln!(stdout(), "serving")?;
    Ok(())
}
