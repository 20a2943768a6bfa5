"""Independent client, written from the specification alone. It shares no code with the Tidewire client."""
