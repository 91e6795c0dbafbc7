#include "textflag.h"

#define SYS_write 64

DATA noteFile<>+0(SB)/4, $-1
GLOBL noteFile<>(SB), NOPTR, $4

// handler(R0 signal, R1 siginfo, R2 context) in the C calling convention, on the thread's signal stack. R30 leads to
// the kernel's own sigreturn. write(2) may be called from a handler; a full or missing pipe loses the note and nothing else.
TEXT handler<>(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVW noteFile<>(SB), R0
	MOVD $24, R2
	MOVD $SYS_write, R8
	SVC
	RET

// func noteHandler() uintptr
TEXT ·noteHandler(SB), NOSPLIT, $0-8
	MOVD $handler<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func noteRestorer() uintptr
TEXT ·noteRestorer(SB), NOSPLIT, $0-8
	MOVD ZR, ret+0(FP)
	RET

// func setNoteFile(fd int32)
TEXT ·setNoteFile(SB), NOSPLIT, $0-4
	MOVW fd+0(FP), R0
	MOVW R0, noteFile<>(SB)
	RET

// func saRestorerFlag() uintptr
TEXT ·saRestorerFlag(SB), NOSPLIT, $0-8
	MOVD ZR, ret+0(FP)
	RET
