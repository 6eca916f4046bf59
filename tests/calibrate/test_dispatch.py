"""Whether a table is of training runs or of served models is found from its columns."""

import pytest

from meshwise.calibrate.dispatch import calibrate, is_served, validate
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.calibrate.train.validate import TrainValidation
from meshwise.errors import UserError


def test_a_table_is_validated_as_training_or_serving() -> None:
    assert (is_served("korthikanti2022_iteration"), is_served("h200_transformers_3b")) == (False, True)
    train, serve = (validate(table, "", False, None) for table in ("korthikanti2022_iteration", "h200_transformers_3b"))
    assert isinstance(train, TrainValidation)
    assert isinstance(serve, ServeValidation)
    assert repr(train).startswith("<TrainValidation of korthikanti2022_iteration, 10 rows: time error ")
    assert repr(serve).startswith("<ServeValidation of h200_transformers_3b, 28 rows: decode error ")


def test_tables_of_both_kinds_are_not_fitted_together() -> None:
    with pytest.raises(UserError, match="some tables are of training runs and some of served models; calibrate them separately"):
        calibrate(["korthikanti2022_iteration", "h200_transformers_3b"], (), (), (), None)


def test_fit_and_calibration_exclude_each_other() -> None:
    with pytest.raises(UserError, match="--fit makes its own calibration; drop --calibration"):
        validate("korthikanti2022_iteration", "probe", True, None)
