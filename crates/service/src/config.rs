//! Configuration in layers: defaults, then a file's section, then the command line (whose flags read the environment).

use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ServiceError;

/// Reads the table `[section]` of a TOML file (if one is given) with `flags` on top of it. Flags that were not given
/// must not be serialised. `Config` brings the defaults and refuses unknown keys through its serde attributes.
///
/// # Errors
/// The file is missing or no TOML; a key is unknown or has a value that does not fit, named with its origin.
pub fn load_config<Config: DeserializeOwned>(
    file: Option<&Path>,
    section: &str,
    flags: &impl Serialize,
) -> Result<Config, ServiceError> {
    let mut layers = Figment::new();
    if let Some(path) = file {
        if !path.is_file() {
            return Err(ServiceError::NoConfigFile {
                path: path.to_owned(),
            });
        }
        layers = layers.merge(Figment::from(Toml::file_exact(path)).focus(section));
    }
    layers
        .merge(Serialized::globals(flags))
        .extract()
        .map_err(|error| ServiceError::Config {
            // figment calls the layer of plain keys "default"; users know it as the table.
            reason: error
                .to_string()
                .replace("key \"default.", &format!("key \"{section}.")),
        })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde::{Deserialize, Serialize};

    use super::load_config;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
    struct Config {
        ctx_size: usize,
        threads: usize,
    }

    impl Default for Config {
        fn default() -> Self {
            Self {
                ctx_size: 8192,
                threads: 0,
            }
        }
    }

    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Flags {
        #[serde(skip_serializing_if = "Option::is_none")]
        threads: Option<usize>,
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn load(text: &str, threads: Option<usize>) -> Result<Config, String> {
        let file = file(text);
        load_config(Some(file.path()), "worker", &Flags { threads })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "[worker]\nctx-size = 100\nthreads = 3\n[other]\nx = 1\n";
        assert_eq!(
            load(text, None).unwrap(),
            Config {
                ctx_size: 100,
                threads: 3
            }
        );
        assert_eq!(load(text, Some(9)).unwrap().threads, 9);
        assert_eq!(load("", None).unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = load("[worker]\nctx-sise = 100\n", None).unwrap_err();
        assert!(error.contains("ctx-sise"), "{error}");
        assert!(!error.contains("default"), "{error}");
    }

    #[test]
    fn a_wrong_type_names_the_key_and_the_file() {
        let error = load("[worker]\nthreads = \"two\"\n", None).unwrap_err();
        assert!(
            error.contains("threads") && error.contains("TOML"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let missing = std::path::Path::new("/nonexistent/tandem.toml");
        let error = load_config::<Config>(Some(missing), "worker", &Flags { threads: None });
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/tandem.toml")
        );
    }
}
