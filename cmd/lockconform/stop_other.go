//go:build !unix

package main

import (
	"errors"
	"os/exec"
)

const canStop = false

func ownGroup(*exec.Cmd) {}

func (*program) stop() error   { return errors.ErrUnsupported }
func (*program) resume() error { return errors.ErrUnsupported }
