"""Unlearning methods, one file each. Importing this package makes them known by name."""

from unfed.federation.state import State
from unfed.methods.badt import BadTeacher
from unfed.methods.base import METHODS, Central, Method, Recipe, admit, find, is_code, known_as, option, register
from unfed.methods.fcu import FCU
from unfed.methods.federaser import FedEraser
from unfed.methods.finetune import FineTune
from unfed.methods.fukd import FUKD
from unfed.methods.ga import GradientAscent
from unfed.methods.l1_sparse import L1Sparse
from unfed.methods.led import Led
from unfed.methods.mode import MoDE
from unfed.methods.not_ import NoT
from unfed.methods.pgd import PGD
from unfed.methods.randl import RandL
from unfed.methods.retrain import Retrain
from unfed.methods.salun import SalUn
from unfed.methods.sealed import Sealed
from unfed.methods.ssd import SelectiveSynapticDampening

__all__ = [
    "FCU",
    "FUKD",
    "METHODS",
    "PGD",
    "BadTeacher",
    "Central",
    "FedEraser",
    "FineTune",
    "GradientAscent",
    "L1Sparse",
    "Led",
    "Method",
    "MoDE",
    "NoT",
    "RandL",
    "Recipe",
    "Retrain",
    "SalUn",
    "Sealed",
    "SelectiveSynapticDampening",
    "State",
    "admit",
    "find",
    "is_code",
    "known_as",
    "option",
    "register",
]
