"""The command line of steptrace. Installed as `steptrace_tools`; modules in here import each other relatively."""
