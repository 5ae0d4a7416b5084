# Compiler flags that every C part of the project shares; included by each Makefile.
ROOT := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
BUILD ?= $(ROOT)build
CC ?= gcc
CFLAGS ?= -O2 -g
CFLAGS += -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -fPIC -fstack-protector-strong \
          -D_FORTIFY_SOURCE=2 -D_GNU_SOURCE
LDFLAGS += -Wl,-z,relro,-z,now
