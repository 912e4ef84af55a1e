//! Where a worker listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ServiceError;

/// Where a worker listens: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Endpoint {
    /// A socket file, for processes of one host and user.
    Unix(PathBuf),
    /// `HOST:PORT`. Neither encrypted nor authenticated: for trusted networks only.
    Tcp(String),
}

impl FromStr for Endpoint {
    type Err = ServiceError;

    fn from_str(text: &str) -> Result<Self, ServiceError> {
        let bad = || ServiceError::BadEndpoint {
            got: text.to_owned(),
        };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(bad());
                }
                Ok(Self::Tcp(address.to_owned()))
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = ServiceError;

    fn try_from(text: String) -> Result<Self, ServiceError> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn endpoints_are_read_and_written_alike() {
        for text in [
            "unix:/run/tandem/target.sock",
            "tcp:0.0.0.0:7001",
            "tcp:[::1]:7001",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "unix:",
            "tcp:",
            "tcp:localhost",
            "tcp::7001",
            "tcp:host:70000",
            "/run/x.sock",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("unix:PATH or tcp:HOST:PORT"), "{error}");
        }
    }
}
