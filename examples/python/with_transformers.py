# SPDX-License-Identifier: Apache-2.0
"""A Trainer of transformers whose whole step is one program."""

import digits
import torch
import transformers

import caesura
from caesura.integrations.transformers import CaesuraTrainer


class Classifier(torch.nn.Module):
    """A model as Trainer takes it: it computes its own loss."""

    def __init__(self):
        super().__init__()
        self.net = digits.net()

    def forward(self, images, labels):
        logits = self.net(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


images, labels, test_images, test_labels = digits.load()
rows = [{"images": image, "labels": label} for image, label in zip(images, labels)]
arguments = transformers.TrainingArguments("digits_trainer", num_train_epochs=10, per_device_train_batch_size=32, learning_rate=3e-3,
                                           lr_scheduler_type="constant", use_cpu=True, report_to=[], save_strategy="no",
                                           disable_tqdm=True)
model = Classifier()
trainer = CaesuraTrainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
model.eval()
with torch.no_grad():
    print(f"accuracy {digits.accuracy(model(test_images, test_labels)['logits'], test_labels):.3f}")
print(caesura.stats())
