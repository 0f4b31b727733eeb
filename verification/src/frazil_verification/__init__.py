"""What Frazil's commit protocol is verified with: the simulator, the models and the lab.

This package is not in the wheel of ``frazil``. ``pip install 'frazil[verify]'`` adds it, and the commands
``frazil simulate`` and ``frazil lab`` need it.
"""
