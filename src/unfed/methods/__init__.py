"""Unlearning methods, one file each. Importing this package makes them known by name."""

from unfed.methods.base import METHODS, Method, State, admit, find, option, register
from unfed.methods.finetune import FineTune
from unfed.methods.not_ import NoT
from unfed.methods.retrain import Retrain

__all__ = ["METHODS", "FineTune", "Method", "NoT", "Retrain", "State", "admit", "find", "option", "register"]
