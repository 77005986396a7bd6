//! What the status of a completion means to whoever posted the work.

use rdma_sys::ibv_wc_status as wc;

use super::endpoint::Job;
use crate::WorkError;

/// How an entry of the send queue ended.
pub(super) fn of_send(status: u32, job: &Job) -> Result<(), WorkError> {
    Err(match status {
        wc::IBV_WC_SUCCESS => return Ok(()),
        wc::IBV_WC_WR_FLUSH_ERR => WorkError::Flushed,
        wc::IBV_WC_REM_ACCESS_ERR => WorkError::RemoteAccess,
        // An endpoint that answers no READ at all calls one an invalid request.
        wc::IBV_WC_REM_INV_REQ_ERR if matches!(job, Job::Read { .. }) => WorkError::RemoteAccess,
        wc::IBV_WC_REM_INV_REQ_ERR => WorkError::TooLong,
        // What Soft-RoCE answers to a message that is longer than its receive, where the specification has the former.
        wc::IBV_WC_REM_OP_ERR if matches!(job, Job::Send { .. }) => WorkError::TooLong,
        wc::IBV_WC_RNR_RETRY_EXC_ERR => WorkError::ReceiverNotReady,
        wc::IBV_WC_MW_BIND_ERR => WorkError::Bind,
        wc::IBV_WC_RETRY_EXC_ERR
        | wc::IBV_WC_REM_OP_ERR
        | wc::IBV_WC_REM_ABORT_ERR
        | wc::IBV_WC_RESP_TIMEOUT_ERR
        | wc::IBV_WC_BAD_RESP_ERR => WorkError::Disconnected,
        _ if matches!(job, Job::Bind { .. }) => WorkError::Bind,
        _ => WorkError::Device,
    })
}

/// How a receive ended.
pub(super) fn of_receive(status: u32) -> Result<(), WorkError> {
    Err(match status {
        wc::IBV_WC_SUCCESS => return Ok(()),
        wc::IBV_WC_WR_FLUSH_ERR => WorkError::Flushed,
        // The specification has the first for a message that is longer than its receive; Soft-RoCE has the last.
        wc::IBV_WC_LOC_LEN_ERR | wc::IBV_WC_REM_INV_REQ_ERR | wc::IBV_WC_LOC_QP_OP_ERR => WorkError::TooLong,
        _ => WorkError::Device,
    })
}
