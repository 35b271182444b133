"""Every private name of torch that ddptop uses, with the versions it was checked on."""
