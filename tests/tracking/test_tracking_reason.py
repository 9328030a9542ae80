"""A store's errors in few words."""

from mlflow.exceptions import MlflowException

from runner.tracking.mlflow_setup import reason


def test_a_pages_long_error_is_its_innermost_cause():
    text = (
        "API request to https://store.example/api/2.0/mlflow/runs/log-batch failed with exception HTTPSConnectionPool("
        "host='store.example', port=443): Max retries exceeded with url: /api/2.0/mlflow/runs/log-batch (Caused by "
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))"
    )
    assert reason(MlflowException(text)) == (
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))"
    )
