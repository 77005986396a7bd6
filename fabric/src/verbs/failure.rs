//! What a failed call to the device means, and what to do about it.

use std::io;

use super::sys::memlock;
use crate::FabricError;

/// The error of a call to the device.
pub(super) fn failed(verb: &'static str, device: &str, source: io::Error) -> FabricError {
    let advice = advice(verb, source.raw_os_error().unwrap_or(0), memlock());
    FabricError::Verb { verb, device: device.to_owned(), advice, source }
}

/// What an error number of a verb usually means.
fn advice(verb: &str, number: i32, memlock: Option<u64>) -> String {
    let registers = verb.starts_with("ibv_reg_mr");
    if verb == "ibv_open_device" {
        // Whatever the number: the library leaves that of its last attempt.
        return "this user may not open the device, or it is just being removed: see the owner and mode of \
                /dev/infiniband/uverbs* (in a container: is it passed in?)"
            .into();
    }
    match number {
        // EPERM is how the kernel refuses a limit of zero.
        libc::ENOMEM | libc::EAGAIN | libc::EPERM if registers => match memlock {
            Some(limit) => format!(
                "memory cannot be locked, or the device is out of registrations; this process may lock {limit} bytes \
                 (RLIMIT_MEMLOCK): raise it with `ulimit -l unlimited`, or LimitMEMLOCK=infinity in its systemd unit"
            ),
            None => "the device is out of registrations, or the machine out of memory that can be locked (there is no \
                     RLIMIT_MEMLOCK in the way): lower the pool's size, or free registrations (`rdma resource`)"
                .into(),
        },
        libc::ENOMEM | libc::ENOSPC => {
            "the device is out of resources for this, or out of memory for them: see what holds them with `rdma resource \
             show`, close sessions, or lower the configured depths"
                .into()
        }
        libc::EINVAL if registers => {
            "the device does not do these access rights, or not for this much memory at once".into()
        }
        libc::EINVAL => "the device does not do these flags, sizes or rights, or an object is still in use by another".into(),
        libc::EBUSY => "it is still in use: free what depends on it first, windows before their region".into(),
        libc::EACCES | libc::EPERM => {
            "this user may not use the device: see the owner and mode of /dev/infiniband/uverbs*".into()
        }
        libc::ENODEV | libc::EIO => "the device is gone or has failed: see the kernel's log, and `rdma link`".into(),
        libc::EOPNOTSUPP | libc::ENOSYS => {
            "the device's driver or its library does not offer this: is the provider installed (ibverbs-providers), and as new \
             as the kernel's driver?"
                .into()
        }
        libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH => {
            "there is no way to the peer's GID: are both sides on networks that reach each other, under these addresses?".into()
        }
        _ => "see the kernel's log".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_the_verb_the_device_the_reason_and_what_to_do() {
        let text = advice("ibv_reg_mr", libc::ENOMEM, Some(65_536));
        assert!(text.contains("65536") && text.contains("ulimit -l unlimited"), "{text}");
        let text = advice("ibv_reg_mr", libc::EPERM, Some(0));
        assert!(text.contains("ulimit -l unlimited"), "{text}");
        let text = advice("ibv_reg_mr", libc::ENOMEM, None);
        assert!(!text.contains("ulimit"), "{text}");
        let text = advice("ibv_create_qp", libc::ENOMEM, Some(65_536));
        assert!(text.contains("rdma resource") && !text.contains("65536"), "{text}");
        let error = failed("ibv_dereg_mr", "mlx5_0", io::Error::from_raw_os_error(libc::EBUSY));
        assert!(error.to_string().starts_with("ibv_dereg_mr failed on mlx5_0: it is still in use"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}
