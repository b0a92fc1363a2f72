"""The engines that can be measured, behind one small protocol, each in a process of its own."""
