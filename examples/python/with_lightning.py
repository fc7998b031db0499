# SPDX-License-Identifier: Apache-2.0
"""Lightning trains, a strategy makes its whole step one program."""

import digits
import lightning
import torch

import caesura
from caesura.integrations.lightning import CaesuraStrategy


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = digits.net()

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


images, labels, test_images, test_labels = digits.load()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32, shuffle=True)
task = Task()
trainer = lightning.Trainer(max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            strategy=CaesuraStrategy())
trainer.fit(task, loader)
task.eval()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(task.net(test_images), test_labels):.3f}")
print(caesura.stats())
