# SPDX-License-Identifier: Apache-2.0
"""pytorch-forecasting's temporal fusion transformer in Lightning's Trainer."""

import lightning
import numpy as np
import pandas as pd
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import QuantileLoss

from caesura.integrations.lightning import CaesuraCallback, CaesuraStrategy


def run(loop):
    days, noise = np.arange(200), np.random.default_rng(0)
    frames = [pd.DataFrame({"day": days, "series": str(i), "value": np.sin(days / (5 + i)) + 0.1 * noise.normal(size=200)})
              for i in range(8)]
    data = TimeSeriesDataSet(pd.concat(frames, ignore_index=True), time_idx="day", target="value", group_ids=["series"],
                             max_encoder_length=24, max_prediction_length=6, time_varying_known_reals=["day"],
                             time_varying_unknown_reals=["value"], static_categoricals=["series"])
    model = TemporalFusionTransformer.from_dataset(data, hidden_size=16, attention_head_size=2, dropout=0.1, hidden_continuous_size=8,
                                                   loss=QuantileLoss(), learning_rate=0.01, optimizer="adam", log_interval=-1)
    if loop.route in ("compile", "autotune"):
        model.forward = loop.module(model.forward)
    loop.hook()
    strategy = "auto"
    if loop.route == "loop":
        strategy = CaesuraStrategy(step_options={"masks": "pytorch"})
        loop.watch(strategy)
    trainer = lightning.Trainer(max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                gradient_clip_val=0.1, strategy=strategy, callbacks=[CaesuraCallback()] if loop.route == "wrap" else [])
    trainer.fit(model, data.to_dataloader(train=True, batch_size=64, num_workers=0))
